// Clipping: gradients are scaled by one factor, that of their total norm.
#include "dtensor/optim/clip.h"

#include <ATen/ATen.h>

#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"
#include "internal/host_work.h"
#include "internal/parameter_swap.h"
#include "optim/grad_norm/total_norm.h"
#include "optim/parameter_lists.h"

namespace dtensor {
namespace {

using optim::has_values_on_host;
using optim::NormGroup;

constexpr double kEpsilon = 1e-6;  // as in torch.nn.utils.clip_grad_norm_

at::Tensor factor_of(const at::Tensor& norm, double max_norm) {
  if (!has_values_on_host(norm)) return at::clamp_max(max_norm / (norm + kEpsilon), 1.0);
  const double ratio = max_norm / (norm.item<double>() + kEpsilon);
  return at::scalar_tensor(ratio > 1 ? 1.0 : ratio, norm.options());  // keeps NaN
}

void scale(const std::vector<at::Tensor>& gradients, const at::Tensor& norm, double max_norm) {
  const at::Tensor factor = factor_of(norm, max_norm);
  if (has_values_on_host(factor) && factor.item<double>() == 1) return;
  std::vector<at::Tensor> here, elsewhere;
  for (const at::Tensor& g : gradients) (optim::device_of_data(g) == factor.device() ? here : elsewhere).push_back(g);
  if (!here.empty()) at::_foreach_mul_(here, factor);
  if (!elsewhere.empty()) at::_foreach_mul_(elsewhere, factor.to(optim::device_of_data(elsewhere.front())));
}

// A rank outside all meshes, or outside options.mesh, has no total norm and must have nothing to scale.
void check_elsewhere(const std::vector<at::Tensor>& gradients) {
  for (const at::Tensor& g : gradients) {
    TORCH_CHECK(is_dtensor(g) && !DTensor(g).mesh().is_member(),
                "clip_grads_with_norm_: total_norm is undefined, but this rank has a gradient of ", "sizes ", g.sizes(),
                " to scale");
  }
}

}  // namespace

at::Tensor clip_divisor(double max_norm, const at::Tensor& total_norm) {
  if (!total_norm.defined()) return {};
  const auto divisor = at::clamp_min((total_norm + kEpsilon) / max_norm, 1.0);
  return has_values_on_host(divisor) && divisor.item<double>() == 1 ? at::Tensor() : divisor;
}

void clip_grads_with_norm_(at::TensorList parameters, double max_norm, const at::Tensor& total_norm) {
  const LocalNoGradGuard scope;
  const HostWorkScope host(parameters);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : unique_tensors(parameters)) {
    if (p.grad().defined()) gradients.push_back(p.grad());
  }
  if (!total_norm.defined()) return check_elsewhere(gradients);
  if (!gradients.empty()) scale(gradients, total_norm, max_norm);
}

at::Tensor clip_grad_norm_(at::TensorList listed, double max_norm, NormOptions options) {
  const LocalNoGradGuard scope;
  const HostWorkScope host(listed);
  const std::vector<at::Tensor> parameters = unique_tensors(listed);
  const optim::Gradients gradients(parameters, options.norm_type);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& reduced = gradients.reduced[i];
    if (reduced.defined() && !reduced.is_same(parameters[i].grad())) parameters[i].mutable_grad() = reduced;
  }
  const NormGroup group(gradients.described, options.mesh);
  const at::Tensor norm = group.is_outside_all_meshes()
                              ? at::Tensor()
                              : optim::total_norm(gradients.reduced, gradients.described, group, options);
  clip_grads_with_norm_(parameters, max_norm, norm);
  return norm;
}

}  // namespace dtensor
