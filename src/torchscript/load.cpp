// TorchScript modules on a mesh: their parameters and buffers become DTensors, and the interpreter calls ATen operators
// on them.
#include "dtensor/c/dtensor.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <unordered_map>
#include <vector>

#include "c/handles.h"
#include "c/status.h"
#include "dtensor/fully_shard.h"

namespace dtensor::c {
namespace {

// A result is a tensor, or a tuple or list of tensors.
TensorVector tensors_of(const c10::IValue& result) {
  if (result.isTensor()) return {result.toTensor()};
  if (result.isTensorList()) return result.toTensorVector();
  TORCH_CHECK_VALUE(result.isTuple(), "expected a TorchScript module that returns tensors, got a result of type ",
                    result.tagKind());
  TensorVector tensors;
  for (const auto& element : result.toTupleRef().elements()) {
    TORCH_CHECK_VALUE(element.isTensor(), "expected a TorchScript module that returns tensors, got a tuple with a ",
                      element.tagKind());
    tensors.push_back(element.toTensor());
  }
  return tensors;
}

class ScriptModule final : public nn::Module {
 public:
  ScriptModule(torch::jit::Module script, const DeviceMesh& mesh) : script_(std::move(script)) {
    replace_tensors(mesh, /*parameters=*/true);
    replace_tensors(mesh, /*parameters=*/false);
  }

  TensorVector forward(const TensorVector& inputs) {
    // The optimizing executor generates code for regular tensors.
    const torch::jit::GraphOptimizerEnabledGuard interpret(false);
    return tensors_of(script_.forward(std::vector<c10::IValue>(inputs.begin(), inputs.end())));
  }

  void set_training(bool on) { script_.train(on); }

  // Writes the module with full regular tensors, on rank 0. Collective.
  void save(const std::string& path, const Communicator& ranks) {
    std::unordered_map<const c10::TensorImpl*, at::Tensor> full;
    for (auto& slot : slots_) {
      auto& tensor = full[slot.tensor->unsafeGetTensorImpl()];
      if (!tensor.defined()) tensor = DTensor(slot.tensor->detach()).full_tensor();
      slot.owner.setattr(slot.name, at::Tensor(tensor).requires_grad_(slot.tensor->requires_grad()));
    }
    agree(ranks, [&] {
      const auto restore = c10::make_scope_exit([this] {
        for (auto& slot : slots_) slot.owner.setattr(slot.name, *slot.tensor);
      });
      if (ranks.rank() == 0) script_.save(path);
      return std::string();
    });
  }

 private:
  void replace_tensors(const DeviceMesh& mesh, bool parameters) {
    for (const auto& part : script_.named_modules()) {
      auto owner = part.value;
      const std::string prefix = part.name.empty() ? "" : part.name + ".";
      std::vector<std::pair<std::string, at::Tensor>> tensors;
      if (parameters) {
        for (const auto& item : owner.named_parameters(/*recurse=*/false)) tensors.emplace_back(item.name, item.value);
      } else {
        for (const auto& item : owner.named_buffers(/*recurse=*/false)) tensors.emplace_back(item.name, item.value);
      }
      for (const auto& [name, tensor] : tensors) {
        at::Tensor& placed = place(tensor, mesh);
        const bool trainable = tensor.requires_grad();
        parameters ? register_parameter(prefix + name, placed) : register_buffer(prefix + name, placed);
        placed.requires_grad_(trainable);
        owner.setattr(name, placed);
        slots_.push_back({owner, name, &placed});
      }
    }
  }

  // The DTensor of a tensor of the file; tied tensors stay tied.
  at::Tensor& place(const at::Tensor& tensor, const DeviceMesh& mesh) {
    auto& placed = placed_[tensor.unsafeGetTensorImpl()];
    if (placed.defined()) return *tensors_.emplace_back(std::make_unique<at::Tensor>(placed));
    kept_.push_back(tensor);  // another tensor cannot get its address
    const Placements replicated(static_cast<std::size_t>(mesh.ndim()));
    placed = distribute_tensor(tensor.detach(), mesh, replicated).detach();
    return *tensors_.emplace_back(std::make_unique<at::Tensor>(placed));
  }

  struct Slot {
    torch::jit::Module owner;
    std::string name;
    const at::Tensor* tensor;
  };

  torch::jit::Module script_;
  std::vector<Slot> slots_;
  std::vector<at::Tensor> kept_;
  std::vector<std::unique_ptr<at::Tensor>> tensors_;  // their addresses are registered
  std::unordered_map<const c10::TensorImpl*, at::Tensor> placed_;
};

// Names and sizes of all tensors, which must be equal on all ranks.
std::string describe(const torch::jit::Module& script) {
  std::string text = "a module with";
  for (const auto& item : script.named_parameters()) {
    text += c10::str(" ", item.name, " ", item.value.scalar_type(), " ", item.value.sizes());
  }
  for (const auto& item : script.named_buffers()) {
    text += c10::str(" ", item.name, " ", item.value.scalar_type(), " ", item.value.sizes());
  }
  return text;
}

torch::jit::Module load(const char* path) {
  const std::string file = &required(path, "path");
  try {
    return torch::jit::load(file, at::kCPU);
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "expected a file of torch.jit.save, got '", file, "': ", error.msg());
  }
}

}  // namespace
}  // namespace dtensor::c

using namespace dtensor::c;

dtensor_status dtensor_module_load_torchscript(const dtensor_mesh* mesh, const char* path, dtensor_module** module) {
  return guarded_on_all(__func__, {mesh}, [&] {
    const auto& on = object(mesh).mesh;
    torch::jit::Module script;
    agree(on.communicator(), [&] {
      required(module, "pointer for the module");
      script = load(path);
      return describe(script);
    });
    const auto loaded = std::make_shared<ScriptModule>(std::move(script), on);
    *module = new_handle<dtensor_module>(
        Module{.mesh = on,
               .module = loaded,
               .forward = [loaded](const TensorVector& inputs) { return dtensor::call(*loaded, inputs); },
               .train = [loaded](bool training) { loaded->set_training(training); },
               .save = [loaded, on](const std::string& file) { loaded->save(file, on.communicator()); }});
  });
}

dtensor_status dtensor_module_save_torchscript(const dtensor_module* module, const char* path) {
  return guarded_on_all(__func__, {module}, [&] {
    const auto& saved = object(module);
    agree(saved.mesh.communicator(), [&] {
      TORCH_CHECK_VALUE(saved.save, "expected a module of dtensor_module_load_torchscript, got a layer");
      return std::string("path ") + &required(path, "path");
    });
    saved.save(path);
  });
}
