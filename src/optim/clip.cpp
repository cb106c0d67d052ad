// The total norm: local norms of the parts that this rank counts, their p-th powers summed in double, one exchange.
#include "dtensor/optim/clip.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "dtensor/tensor.h"
#include "optim/lists.h"
#include "optim/norm_group.h"
#include "optim/sums.h"

namespace dtensor {
namespace {

// Partial tensors are reduced (Replicate on those axes), in few collectives and as full_tensor() would.
std::vector<at::Tensor> without_partials(std::vector<at::Tensor> tensors) {
  const auto is_partial = [](const Placement& p) { return p.is_partial(); };
  std::vector<DTensor> partial;
  std::vector<Placements> whole;
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!is_dtensor(tensors[i])) continue;
    const DTensor tensor(tensors[i]);
    Placements placements = tensor.placements();
    if (std::none_of(placements.begin(), placements.end(), is_partial)) continue;
    std::replace_if(placements.begin(), placements.end(), is_partial, Replicate());
    partial.push_back(tensor);
    whole.push_back(std::move(placements));
    positions.push_back(i);
  }
  const auto reduced = redistribute(partial, std::move(whole));
  for (std::size_t k = 0; k < positions.size(); ++k) tensors[positions[k]] = reduced[k];
  return tensors;
}

using optim::NormGroup;
using optim::Share;

// At least single precision; what the user reads and gradients are scaled by.
at::ScalarType result_type(at::TensorList tensors) {
  auto type = at::kFloat;
  for (const at::Tensor& t : tensors) {
    if (t.defined() && c10::toRealValueType(t.scalar_type()) == at::kDouble) type = at::kDouble;
  }
  return type;
}

c10::Device device_of(at::TensorList tensors) {
  for (const at::Tensor& t : tensors) {
    if (t.defined()) return optim::device_of_data(t);
  }
  return at::kCPU;
}

at::Tensor combine(const at::Tensor& a, const at::Tensor& b, double p) {
  return std::isinf(p) ? at::maximum(a, b) : a + b;
}

at::Tensor total_norm(at::TensorList tensors, const NormGroup& group, const NormOptions& options) {
  const double p = options.norm_type;
  TORCH_CHECK(p > 0, "get_total_norm: norm_type must be positive, not ", p);
  const c10::Device device = device_of(tensors);
  optim::PowerSum own(p), common(p);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    const Share share = group.share(tensors[i], i);
    if (share == Share::elsewhere) continue;
    (share == Share::here ? own : common).add(is_dtensor(tensors[i]) ? DTensor(tensors[i]).to_local() : tensors[i]);
  }
  at::Tensor total = own.value(device);
  const Communicator& comm = group.communicator();
  if (comm && comm.size() > 1) comm.all_reduce(total, std::isinf(p) ? ReduceOp::max : ReduceOp::sum).wait();
  total = combine(total, common.value(device), p);
  if (!std::isinf(p)) total = total.pow(1 / p);
  TORCH_CHECK(!options.error_if_nonfinite || std::isfinite(total.item<double>()), "the total norm of order ", p, " of ",
              tensors.size(), " tensors is ", total.item<double>());
  return total.to(result_type(tensors));
}

void scale(const std::vector<at::Tensor>& gradients, const at::Tensor& norm, double max_norm) {
  const at::Tensor factor = at::clamp_max(max_norm / (norm + 1e-6), 1.0);
  if (factor.is_cpu() && factor.item<double>() == 1) return;
  std::vector<at::Tensor> here, elsewhere;
  for (const at::Tensor& g : gradients) (optim::device_of_data(g) == factor.device() ? here : elsewhere).push_back(g);
  if (!here.empty()) at::_foreach_mul_(here, factor);
  if (!elsewhere.empty()) at::_foreach_mul_(elsewhere, factor.to(optim::device_of_data(elsewhere.front())));
}

}  // namespace

at::Tensor get_total_norm(at::TensorList tensors, NormOptions options) {
  const at::NoGradGuard no_grad;
  const auto reduced = without_partials(tensors.vec());
  const NormGroup group(reduced);
  return group.outside() ? at::Tensor() : total_norm(reduced, group, options);
}

at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm, NormOptions options) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients, described;  // without a gradient here, the parameter still names its mesh
  for (const at::Tensor& p : parameters) gradients.push_back(p.grad());
  gradients = without_partials(std::move(gradients));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (gradients[i].defined() && !gradients[i].is_same(parameters[i].grad()))
      parameters[i].mutable_grad() = gradients[i];
    described.push_back(gradients[i].defined() ? gradients[i] : parameters[i]);
  }
  const NormGroup group(described);
  if (group.outside()) return {};
  const at::Tensor norm = total_norm(gradients, group, options);
  std::erase_if(gradients, [](const at::Tensor& g) { return !g.defined(); });
  if (!gradients.empty()) scale(gradients, norm, max_norm);
  return norm;
}

}  // namespace dtensor
