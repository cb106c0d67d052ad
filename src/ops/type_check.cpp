// Calls the plain operator on zeros, once for a decision, and only on a rank without elements.
#include "ops/type_check.h"

#include <ATen/ops/zeros.h>

#include "ops/handlers/local_args.h"

namespace dtensor {
namespace {

bool is_empty(at::IntArrayRef sizes) { return c10::multiply_integers(sizes) == 0; }

at::DimVector sizes_at(const TensorSpec& spec, const Coordinate& coordinate) {
  return local_sizes(spec.sizes, spec.placements, spec.mesh->layout.shape, coordinate);
}

bool has_empty_part(const CachedCall& call) {
  return std::any_of(call.inputs.begin(), call.inputs.end(),
                     [](const InputAction& input) { return input.to && lacks_elements(*input.to); });
}

// Of float or double all, or of integers beside them.
bool has_usual_types(const CachedCall& call) {
  auto floating = c10::ScalarType::Undefined;
  for (const auto& input : call.inputs) {
    if (!input.to || input.to->dtype == c10::ScalarType::Long) continue;
    if (input.to->dtype != c10::ScalarType::Float && input.to->dtype != c10::ScalarType::Double) return false;
    if (floating != c10::ScalarType::Undefined && floating != input.to->dtype) return false;
    floating = input.to->dtype;
  }
  return floating != c10::ScalarType::Undefined;
}

// A rank with elements of every operand that has any; none: nobody computes.
std::optional<Coordinate> find_full_rank(const CachedCall& call) {
  const MeshLayout& layout = call.mesh->layout;
  for (std::int64_t i = 0; i < layout.size(); ++i) {
    const Coordinate at = coordinate_of_index(layout, i);
    const bool full = std::all_of(call.inputs.begin(), call.inputs.end(), [&](const InputAction& input) {
      return !input.to || is_empty(input.to->sizes) || !is_empty(sizes_at(*input.to, at));
    });
    if (full) return at;
  }
  return std::nullopt;
}

class StandIns {
 public:
  StandIns(const CachedCall& call, const Coordinate& at) : call_(call), at_(at) {}

  c10::IValue replace(const c10::IValue& value, ArgKind kind) {
    if (kind == ArgKind::tensor) return next(value);
    if (kind != ArgKind::tensor_list || !value.isList()) return value;
    const auto items = value.toListRef();
    if (value.isTensorList()) return fill(items, c10::List<at::Tensor>());
    return fill(items, c10::List<std::optional<at::Tensor>>());
  }

 private:
  c10::IValue next(const c10::IValue& value) {
    const auto& input = call_.inputs[next_++];
    if (!input.to) return value;
    const at::Device device(call_.mesh->device);
    return at::zeros(sizes_at(*input.to, at_), at::TensorOptions(input.to->dtype).device(device));
  }
  template <class List>
  c10::IValue fill(at::ArrayRef<c10::IValue> items, List list) {
    for (const auto& item : items) {
      const auto value = next(item);
      list.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
    return list;
  }

  const CachedCall& call_;
  const Coordinate& at_;
  std::size_t next_ = 0;
};

bool speaks_of_types(const c10::Error& error) {
  return error.msg().find("type") != std::string::npos || error.msg().find("not implemented for") != std::string::npos;
}

// Factors of a matrix name rows by pivots, of which zero is none.
bool takes_pivots(const OpEntry& entry) {
  const auto& arguments = entry.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::Argument& argument) { return argument.name().find("pivots") != std::string::npos; });
}

}  // namespace

std::exception_ptr refusal_on_stand_ins(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CachedCall& call) {
  if (entry.is_random || entry.by_position() || entry.inplace_view) return nullptr;
  // Other local kernels, and patches, change the arguments to fit the part.
  const bool skips = call.decision.handler == "skip_empty" && call.decision.patches.empty() && !takes_pivots(entry);
  if (!has_empty_part(call) || (!skips && has_usual_types(call))) return nullptr;
  const auto at = find_full_rank(call);
  if (!at) return nullptr;
  StandIns stand_ins(call, *at);
  torch::jit::Stack stack;
  for (std::size_t i = 0; i < args.size(); ++i) stack.push_back(stand_ins.replace(args[i], entry.args[i].kind));
  try {
    entry.op.callBoxed(stack);
  } catch (const c10::LinAlgError&) {  // of the values of matrices
  } catch (const c10::Error& error) {
    if (skips || speaks_of_types(error)) return std::current_exception();
  }
  return nullptr;
}

}  // namespace dtensor
