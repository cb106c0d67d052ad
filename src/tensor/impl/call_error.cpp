// Adds the context of a call to exceptions. It runs only after an exception was thrown.
#include "tensor/impl/call_error.h"

#include "comm/record/rank_record.h"
#include "placement/dtype_name.h"

namespace dtensor {
namespace {

constexpr std::size_t kShownOperands = 8;

// Marks an error whose context was already added.
class ContextualizedError final : public CommError {
  using CommError::CommError;
};

class Words {
 public:
  explicit Words(const MeshInfo* mesh) : mesh_(mesh) {}

  // For example f32[4, 8] [S(0), R], followed by the tensor's mesh if it is not the mesh of the call.
  void add(const TensorSpec& spec) {
    if (mesh_ == nullptr) mesh_ = spec.mesh.get();
    auto text = c10::str(dtype_abbreviation(spec.dtype), at::IntArrayRef(spec.sizes), ' ', to_string(spec.placements));
    add(spec.mesh.get() == mesh_ ? text : text + " on " + as_mesh_impl(*spec.mesh).str());
  }
  void add(const c10::TensorImpl& impl) {
    if (has_dtensor_key(&impl)) return add(*static_cast<const DTensorImpl&>(impl).spec());
    add(c10::str("regular ", c10::toString(c10::typeMetaToScalarType(impl.dtype())), impl.sizes()));
  }
  std::string operands() const {
    return count_ > kShownOperands ? c10::str(text_, ", ... of ", count_, " tensors") : text_;
  }
  // Records the error for other ranks, in case this rank diverges because of it.
  void record_error(const char* text) const {
    if (mesh_ != nullptr) as_mesh_impl(*mesh_).record().record_error(text);
  }
  std::string str(const std::string& name) const {
    auto text = c10::str("in ", name, "(", operands(), ")");
    if (mesh_ != nullptr) text += " on " + as_mesh_impl(*mesh_).str();
    if (const auto* module = calling_module()) text += ", in " + *module;
    return text;
  }

 private:
  void add(const std::string& operand) {
    if (++count_ <= kShownOperands) text_ += (count_ > 1 ? ", " : "") + operand;
  }

  const MeshInfo* mesh_;
  std::string text_;
  std::size_t count_ = 0;
};

Words words_of(SpecList operands) {
  Words words(nullptr);
  for (const auto* spec : operands) {
    if (spec != nullptr) words.add(*spec);
  }
  return words;
}

[[noreturn]] void rethrow_with(const std::string& name, const Words& operands) {
  const auto words = operands.str(name);
  try {
    throw;
  } catch (c10::Error& error) {
    if (error.context().empty()) error.add_context(words);
    operands.record_error(error.what_without_backtrace());
    throw;
  } catch (const ContextualizedError&) {
    throw;
  } catch (const CommError& error) {
    throw ContextualizedError(c10::str(error.what(), " (", words, ")"));
  }
}

}  // namespace

std::string describe_operands(SpecList operands) { return words_of(operands).operands(); }

void set_storage_error_message(DTensorImpl& tensor) {
  static const std::string text =
      "Cannot access the data of a DTensor, which has no memory of its own (data_ptr, accessors, printing, "
      "torch::save): use the local tensor, DTensor(t).to_local(), or the full one, DTensor(t).full_tensor(); "
      "to save DTensors, use Checkpoint, or dtensor.save in Python";
  tensor.release_storage_and_set_meta_custom_data_ptr_error_msg_(text);
}

void rethrow_with_call(const std::string& name, at::TensorList operands, const MeshInfo* mesh) {
  Words words(mesh);
  for (const auto& operand : operands) {
    if (operand.defined()) words.add(*operand.unsafeGetTensorImpl());
  }
  rethrow_with(name, words);
}

void rethrow_with_call(const std::string& name, c10::ArrayRef<c10::TensorImpl*> operands) {
  Words words(nullptr);
  for (const auto* impl : operands) {
    if (impl != nullptr) words.add(*impl);
  }
  rethrow_with(name, words);
}

void rethrow_with_call(const std::string& name, SpecList operands) { rethrow_with(name, words_of(operands)); }

}  // namespace dtensor
