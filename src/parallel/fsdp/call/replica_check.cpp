// Tensor parallelism beside local tensors: a module outside the plan that gets local shards of activations (to_local)
// computes only this rank's part of its gradients.
#include <ATen/ATen.h>

#include <cmath>

#include "internal/simulated.h"
#include "parallel/fsdp/call/local_module_call.h"

namespace dtensor::fsdp {
namespace {

// Of replicated computations. Parts of a sum differ by more.
constexpr double kRounding = 1e-3;

// The gradients of regular tensors, with their members.
std::vector<std::size_t> undistributed(const std::vector<UnitParameter>& members, at::TensorList gradients,
                                       const DeviceMesh& mesh) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].unit == nullptr || members[i].unit->mesh == mesh || !gradients[i].defined()) continue;
    if (!is_dtensor(gradients[i]) && !is_simulated(gradients[i])) found.push_back(i);
  }
  return found;
}

}  // namespace

void check_equal_gradients(const std::vector<UnitParameter>& members, at::TensorList gradients,
                           const DeviceMesh& mesh) {
  const auto checked = undistributed(members, gradients, mesh);
  if (checked.empty() || mesh.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;  // norm and sum of each
  for (const auto i : checked) {
    const auto gradient = gradients[i].detach().to(at::kDouble);
    values.push_back(gradient.norm()), values.push_back(gradient.sum());
  }
  const auto mine = at::stack(values).cpu(), all = at::empty({mesh.size(), mine.numel()}, mine.options());
  mesh.communicator().all_gather(all.unbind(0), mine).wait();
  for (std::size_t k = 0; k < checked.size(); ++k) {
    const auto both = all.narrow(1, static_cast<std::int64_t>(2 * k), 2);
    const auto most = std::get<0>(both.max(0)), least = std::get<0>(both.min(0));
    const auto norm = most[0].item<double>(), difference = (most - least).max().item<double>();
    TORCH_CHECK(!(difference > kRounding * norm), "fully_shard: expected equal gradients of parameter '",
                members[checked[k]].parameter().name, "' on the ranks of ", mesh.str(), ", on which it is not ",
                "distributed, got norms from ", least[0].item<double>(), " to ", norm,
                ": its module gets local shards ",
                "of activations there. Add the module to the plan of parallelize_module (SequenceParallel), or let it ",
                "compute with DTensors (use_local_output=False)");
  }
}

}  // namespace dtensor::fsdp
