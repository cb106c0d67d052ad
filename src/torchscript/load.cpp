// TorchScript modules on a mesh: their parameters and buffers become DTensors, and the interpreter calls ATen operators
// on them.
#include "dtensor/c/dtensor.h"

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

class ScriptModule final : public nn::Module {
 public:
  ScriptModule(torch::jit::Module script, const DeviceMesh& mesh) : script_(std::move(script)) {
    replace_tensors(mesh, /*parameters=*/true);
    replace_tensors(mesh, /*parameters=*/false);
  }

  at::Tensor forward(const at::Tensor& x) {
    // The optimizing executor generates code for regular tensors.
    const torch::jit::GraphOptimizerEnabledGuard interpret(false);
    const c10::IValue result = script_.forward({x});
    TORCH_CHECK_VALUE(result.isTensor(), "expected a TorchScript module that returns one tensor, got a result of type ",
                      result.tagKind());
    return result.toTensor();
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

  torch::jit::Module script_;
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
  return guarded(__func__, [&] {
    const auto& on = required(mesh, "mesh").mesh;
    torch::jit::Module script;
    agree(on.communicator(), [&] {
      required(module, "pointer for the module");
      script = load(path);
      return describe(script);
    });
    auto loaded = std::make_shared<ScriptModule>(std::move(script), on);
    *module = new dtensor_module{on, loaded, [loaded](const at::Tensor& x) { return dtensor::call(*loaded, x); }};
  });
}
