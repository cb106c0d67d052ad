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

// What a rank puts into the exchange, and what comes out of it. The sums are of p-th powers (for infinity: largest
// values): of what this rank alone counts; of what every rank counts after the exchange; of each kind of copies; and of
// plain tensors, which must be alike on all ranks.
struct Sums {
  explicit Sums(double p, std::int64_t kinds)
      : own(p), common(p), plain(p), copies(static_cast<std::size_t>(kinds), own) {}
  optim::PowerSum own, common, plain;
  std::vector<optim::PowerSum> copies;
};

Sums collect(at::TensorList tensors, const NormGroup& group, double p) {
  Sums sums(p, group.kinds_of_copies());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& t = tensors[i];
    if (!t.defined()) continue;
    if (!is_dtensor(t)) {
      sums.plain.add(t);
      continue;
    }
    const Share share = group.share(t, i);
    if (share == Share::elsewhere) continue;
    const auto kind = group.copies(t);
    auto& sum = kind >= 0 ? sums.copies[static_cast<std::size_t>(kind)] : share == Share::here ? sums.own : sums.common;
    sum.add(DTensor(t).to_local());
  }
  return sums;
}

// Plain tensors have no mesh that says who sums them: where ranks hold different ones, each would be clipped by another
// norm and go its own way. `all`: the sums over n ranks of the value and of its square.
void check_plain(const at::Tensor& mine, const at::Tensor& all, std::int64_t n) {
  const double sum = all[0].item<double>(), squares = all[1].item<double>(), mean = sum / static_cast<double>(n);
  const double spread = squares / static_cast<double>(n) - mean * mean;
  TORCH_CHECK(!std::isfinite(mean) || spread <= 1e-10 * mean * mean,
              "the total norm: plain tensors must be the same on every rank, and are not (the sum of their powers is ",
              mean, " on average, ", mine.item<double>(),
              " on this rank); sum gradients over the ranks first, or make ", "the parameters DTensors");
}

// One exchange of one number, of two more for each kind of copies and for plain tensors.
at::Tensor exchange(const Sums& sums, const NormGroup& group, c10::Device device) {
  const Communicator& comm = group.communicator();
  const auto plain = sums.plain.value(device);
  const auto common = sums.common.value(device);
  if (!comm || comm.size() == 1) return sums.own.value(device) + common + plain;
  std::vector<at::Tensor> parts{sums.own.value(device)};
  for (std::int64_t k = 0; k < group.kinds_of_copies(); ++k) {
    parts.push_back(sums.copies[static_cast<std::size_t>(k)].value(device));
    parts.push_back(at::full_like(parts[0], group.holds_copy(k) ? 1 : 0));
  }
  if (group.has_plain()) parts.insert(parts.end(), {plain, plain.square()});
  auto all = parts.size() == 1 ? parts[0].view({1}) : at::stack(parts);
  comm.all_reduce(all, ReduceOp::sum).wait();
  auto total = all[0] + common;
  for (std::int64_t k = 0; k < group.kinds_of_copies(); ++k)
    total = total + all[1 + 2 * k] / all[2 + 2 * k].clamp_min(1);
  if (!group.has_plain()) return total;
  const auto last = all.narrow(0, all.size(0) - 2, 2);
  if (last.is_cpu()) check_plain(plain, last, comm.size());
  return total + last[0] / comm.size();
}

at::Tensor exchange_largest(const Sums& sums, const NormGroup& group, c10::Device device) {
  auto largest = at::maximum(sums.own.value(device), sums.plain.value(device));
  for (const auto& each : sums.copies) largest = at::maximum(largest, each.value(device));
  const Communicator& comm = group.communicator();
  if (comm && comm.size() > 1) comm.all_reduce(largest, ReduceOp::max).wait();
  return at::maximum(largest, sums.common.value(device));
}

at::Tensor total_norm(at::TensorList tensors, const NormGroup& group, const NormOptions& options) {
  const double p = options.norm_type;
  TORCH_CHECK(p > 0, "get_total_norm: norm_type must be positive, not ", p);
  const c10::Device device = device_of(tensors);
  const auto sums = collect(tensors, group, p);
  const auto total = std::isinf(p) ? exchange_largest(sums, group, device) : exchange(sums, group, device).pow(1 / p);
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
