// Applies updates with foreach operators.
#include "optim/blocks/updates.h"

#include <ATen/ATen.h>

#include "dtensor/tensor.h"
#include "optim/parameter_lists.h"

namespace dtensor::optim {

at::Tensor local_buffer(const detail::SlotOptimizer::Entry& entry, at::ScalarType dtype) {
  if (is_dtensor(entry.parameter) && !DTensor(entry.parameter).mesh().is_member()) {
    const auto options = at::TensorOptions(dtype).device(DTensor(entry.parameter).mesh().device_type());
    return at::empty(at::DimVector(entry.parameter.dim(), 0), options);
  }
  const at::Tensor local = is_dtensor(entry.parameter) ? DTensor(entry.parameter).to_local() : entry.parameter;
  return at::empty_like(local, local.options().dtype(dtype));
}

at::Tensor placed(const at::Tensor& local, const detail::SlotOptimizer::Entry& entry) {
  if (!is_dtensor(entry.parameter)) return local;
  const DTensor p(entry.parameter);
  return DTensor::from_local(local, p.mesh(), without_storage(p.placements()), p.sizes(), p.strides());
}

void apply(const std::vector<Update>& updates) {
  std::vector<bool> done(updates.size());
  for (std::size_t first = 0; first < updates.size(); ++first) {
    if (done[first]) continue;
    std::vector<at::Tensor> parameters, steps;
    const Update& like = updates[first];
    for (std::size_t i = first; i < updates.size(); ++i) {
      if (done[i] || updates[i].decay != like.decay || updates[i].factor != like.factor) continue;
      done[i] = true;
      parameters.push_back(updates[i].parameter);
      steps.push_back(updates[i].update);
    }
    if (like.decay != 0) at::_foreach_mul_(parameters, 1 - like.decay);
    at::_foreach_add_(parameters, steps, like.factor);
  }
}

}  // namespace dtensor::optim
