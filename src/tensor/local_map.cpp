// local_map: hand-written SPMD code on the local tensors of DTensors.
#include "dtensor/tensor.h"

#include "autograd/conversion_nodes.h"

namespace dtensor {
namespace {

// If this input is Replicate on an axis where another input or output is not, the ranks compute different things, and
// each rank's gradient is a summand.
Placements gradient_of_input(std::size_t index, const std::vector<Placements>& inputs,
                             const std::vector<Placements>& outputs) {
  auto result = local_gradient_placements(inputs[index]);
  for (std::size_t axis = 0; axis < result.size(); ++axis) {
    if (!inputs[index][axis].is_replicate()) continue;
    bool differs = false;
    for (const auto& p : inputs) differs = differs || (!p.empty() && !p[axis].is_replicate());
    for (const auto& p : outputs) differs = differs || !p[axis].is_replicate();
    if (differs) result[axis] = Partial();
  }
  return result;
}

DeviceMesh mesh_of(const std::vector<at::Tensor>& inputs) {
  DeviceMesh mesh;
  for (const auto& input : inputs) {
    if (!is_dtensor(input)) continue;
    const auto its = DTensor(input).mesh();
    TORCH_CHECK(!mesh || mesh == its, "local_map: inputs on two meshes: ", mesh.str(), " and ", its.str());
    mesh = its;
  }
  TORCH_CHECK(mesh, "local_map: expected at least one DTensor, got ", inputs.size(), " inputs without one");
  return mesh;
}

// Expects one per entry, or none.
void check_count(const char* what, std::size_t given, std::size_t of, const char* each) {
  TORCH_CHECK(given == 0 || given == of, "local_map: ", given, " ", what, " for ", of, " ", each);
}

void check_options(const DeviceMesh& mesh, std::size_t inputs, const std::vector<Placements>& outputs,
                   const LocalMapOptions& options) {
  check_count("in_placements", options.in_placements.size(), inputs, "inputs");
  check_count("in_grad_placements", options.in_grad_placements.size(), inputs, "inputs");
  check_count("out_sizes", options.out_sizes.size(), outputs.size(), "out_placements");
  for (const auto& placements : outputs) {
    TORCH_CHECK(static_cast<std::int64_t>(placements.size()) == mesh.ndim(), "local_map: out_placements ",
                to_string(placements), " do not fit ", mesh.str(), ": one placement per mesh dimension is needed");
  }
}

}  // namespace

std::vector<at::Tensor> local_map(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& fn,
                                  const std::vector<at::Tensor>& inputs, const std::vector<Placements>& out_placements,
                                  const LocalMapOptions& options) {
  const auto mesh = mesh_of(inputs);
  check_options(mesh, inputs.size(), out_placements, options);
  std::vector<at::Tensor> moved = inputs;
  std::vector<Placements> placements(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!is_dtensor(inputs[i])) continue;
    if (!options.in_placements.empty()) moved[i] = DTensor(inputs[i]).redistribute(options.in_placements[i]);
    placements[i] = DTensor(moved[i]).placements();
  }
  std::vector<at::Tensor> locals = moved;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!is_dtensor(moved[i])) continue;
    const bool explicit_grad = !options.in_grad_placements.empty();
    locals[i] = DTensor(moved[i]).to_local(explicit_grad ? options.in_grad_placements[i]
                                                         : gradient_of_input(i, placements, out_placements));
  }
  auto results = fn(locals);
  TORCH_CHECK(results.size() == out_placements.size(), "local_map: expected ", out_placements.size(),
              " results (one per out_placements), the function returned ", results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const bool sized = i < options.out_sizes.size();
    results[i] = DTensor::from_local(results[i], mesh, out_placements[i],
                                     sized ? at::IntArrayRef(options.out_sizes[i]) : at::IntArrayRef());
  }
  return results;
}

}  // namespace dtensor
