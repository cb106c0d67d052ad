// Losses of the heads are summed over targets, then divided.
#include "train/model/loss.h"

#include <ATen/ATen.h>

#include "dtensor/loss.h"
#include "dtensor/tensor.h"
#include "train/model/model.h"

namespace train {

at::Tensor value_of(const at::Tensor& scalar) {
  const at::Tensor value = scalar.detach();
  return (dtensor::is_dtensor(value) ? dtensor::DTensor(value).full_tensor() : value).to(at::kDouble);
}

namespace {

constexpr std::int64_t kIgnored = -100;

at::Tensor targets_of_head(const at::Tensor& targets, std::int64_t head) {
  return head == 0 ? targets : at::constant_pad_nd(targets, {-head, head}, kIgnored);
}

at::Tensor fused_loss(const std::vector<at::Tensor>& operands, std::size_t head, const at::Tensor& targets, bool mean) {
  const at::Tensor& weight = operands[head + 1];
  const auto reduction = mean ? dtensor::LossReduction::mean : dtensor::LossReduction::sum;
  return dtensor::linear_cross_entropy(operands[0].to(weight.scalar_type()), weight, targets, {.reduction = reduction},
                                       /*chunk=*/0);
}

std::vector<at::Tensor> head_losses(const std::vector<at::Tensor>& operands, const at::Tensor& targets, bool fused,
                                    bool mean) {
  std::vector<at::Tensor> losses;
  for (std::size_t d = 0; d < operands.size() - (fused ? 1 : 0); ++d) {
    const auto own = targets_of_head(targets, static_cast<std::int64_t>(d));
    losses.push_back(fused ? fused_loss(operands, d, own, mean) : token_loss(operands[d], own, mean));
  }
  return losses;
}

at::Tensor mean_over_heads(const std::vector<at::Tensor>& losses) {
  at::Tensor sum = losses[0];
  for (std::size_t d = 1; d < losses.size(); ++d) sum = sum + losses[d];
  return losses.size() == 1 ? sum : sum / static_cast<double>(losses.size());
}

}  // namespace

at::Tensor token_losses(const std::vector<at::Tensor>& logits, const at::Tensor& targets) {
  return mean_over_heads(head_losses(logits, targets, /*fused=*/false, /*mean=*/true));
}

at::Tensor fused_token_losses(const std::vector<at::Tensor>& operands, const at::Tensor& targets) {
  return mean_over_heads(head_losses(operands, targets, /*fused=*/true, /*mean=*/true));
}

BatchLoss::BatchLoss(const at::Tensor& targets, std::size_t parts, std::int64_t heads, bool fused) : fused_(fused) {
  for (std::int64_t d = 0; parts > 1 && d < heads; ++d) {
    counts_.push_back(targets_of_head(targets, d).ne(kIgnored).sum().item<double>());
  }
}

at::Tensor BatchLoss::add(const std::vector<at::Tensor>& operands, const std::vector<at::Tensor>& router_losses,
                          const at::Tensor& targets) {
  const auto heads = head_losses(operands, targets, fused_, counts_.empty());
  at::Tensor routers;
  if (!router_losses.empty()) routers = at::stack(router_losses);
  const auto add_to = [&](at::Tensor& sum, const at::Tensor& part) {
    const at::Tensor own = counts_.empty() ? part : part.detach();
    sum = sum.defined() ? sum + own : own;
  };
  sums_.resize(heads.size());
  for (std::size_t d = 0; d < heads.size(); ++d) add_to(sums_[d], heads[d]);
  if (routers.defined()) add_to(routers_, routers);
  return mean_of(heads, routers);
}

at::Tensor BatchLoss::mean() const { return sums_.empty() ? at::Tensor() : mean_of(sums_, routers_); }

at::Tensor BatchLoss::mean_of(const std::vector<at::Tensor>& heads, const at::Tensor& routers) const {
  std::vector<at::Tensor> means = heads;
  for (std::size_t d = 0; d < counts_.size(); ++d) means[d] = means[d] / counts_[d];
  const at::Tensor loss = mean_over_heads(means);
  return routers.defined() ? loss + routers.sum() : loss;
}

}  // namespace train
