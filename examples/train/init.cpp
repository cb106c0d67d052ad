// Fresh parameters: the same global values on every mesh, each rank making only its own part.
#include "init.h"

#include <ATen/ATen.h>

#include "dtensor/factories.h"
#include "dtensor/random.h"
#include "dtensor/tensor.h"
#include "plan.h"

namespace train {

c10::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::float64:
      return at::kDouble;
    case Dtype::bfloat16:
      return at::kBFloat16;
    default:
      return at::kFloat;
  }
}

namespace {

at::Tensor make(const ParameterSpec& spec, const dtensor::DeviceMesh& mesh, dtensor::Placements placements,
                at::TensorOptions options) {
  switch (spec.init.kind) {
    case Init::Kind::normal:
      return dtensor::randn(spec.sizes, mesh, std::move(placements), options).mul_(spec.init.value);
    case Init::Kind::uniform:
      return dtensor::rand(spec.sizes, mesh, std::move(placements), options).sub_(0.5).mul_(2 * spec.init.value);
    case Init::Kind::constant:
      return dtensor::full(spec.sizes, spec.init.value, mesh, std::move(placements), options);
  }
  TORCH_CHECK(false, "unknown initialisation of ", spec.name);
}

}  // namespace

Parameters make_parameters(const GptConfig& config, const dtensor::DeviceMesh& mesh, const MeshShape& shape,
                           Dtype dtype, std::uint64_t seed) {
  dtensor::manual_seed(mesh, seed);
  Parameters parameters;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    at::Tensor tensor = make(spec, mesh, parameter_placements(spec.name, shape), scalar_type(dtype));
    parameters.add(spec.name, tensor.requires_grad_());
  }
  return parameters;
}

Parameters to_plain(const Parameters& parameters) {
  Parameters plain;
  for (const std::string& name : parameters.names()) {
    plain.add(name, dtensor::DTensor(parameters[name].detach()).full_tensor().clone().requires_grad_());
  }
  return plain;
}

}  // namespace train
