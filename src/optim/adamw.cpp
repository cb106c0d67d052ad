// AdamW on tensor lists: one fused kernel or a sequence of foreach operators.
#include "dtensor/optim.h"

#include <ATen/ATen.h>

#include "optim/option_checks.h"
#include "optim/parameter_lists.h"

namespace dtensor {
namespace {

using optim::Bucket;

at::Tensor on_device_of(const Bucket& b, const at::Tensor& number) {
  return number.to(optim::device_of_data(b.parameters.front()));
}

void divide(const Bucket& b, const at::Tensor& divisor) {
  if (divisor.defined()) at::_foreach_div_(b.gradients, on_device_of(b, divisor));
}

void fused_step(const Bucket& b, const AdamWOptions& o, const at::Tensor& divisor) {
  std::optional<at::Tensor> scale;
  if (b.parameters.front().scalar_type() == at::kDouble) {
    divide(b, divisor);
  } else if (divisor.defined()) {
    scale = on_device_of(b, divisor).to(at::kFloat);
  }
  at::_fused_adamw_(b.parameters, b.gradients, b.slots(0), b.slots(1), {}, b.steps(), o.lr, o.beta1, o.beta2,
                    o.weight_decay, o.eps, /*amsgrad=*/false, /*maximize=*/false, scale);
}

// Same formula as the fused kernel: p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps).
void foreach_step(const Bucket& b, const AdamWOptions& o) {
  const auto averages = b.slots(0), squares = b.slots(1);
  std::vector<at::Scalar> factors, roots;
  for (const detail::SlotOptimizer::Entry* entry : b.entries) {
    const auto t = static_cast<double>(entry->steps);
    factors.emplace_back(-o.lr / (1 - std::pow(o.beta1, t)));
    roots.emplace_back(std::sqrt(1 - std::pow(o.beta2, t)));
  }
  if (o.weight_decay != 0) at::_foreach_mul_(b.parameters, 1 - o.lr * o.weight_decay);
  at::_foreach_lerp_(averages, b.gradients, 1 - o.beta1);
  at::_foreach_mul_(squares, o.beta2);
  at::_foreach_addcmul_(squares, b.gradients, b.gradients, 1 - o.beta2);
  auto denominators = at::_foreach_sqrt(squares);
  at::_foreach_div_(denominators, roots);
  at::_foreach_add_(denominators, o.eps);
  at::_foreach_addcdiv_(b.parameters, averages, denominators, factors);
}

void check(const AdamWOptions& o) {
  optim::check_decay("AdamW", "beta1", o.beta1);
  optim::check_decay("AdamW", "beta2", o.beta2);
  optim::check_not_negative("AdamW", "eps", o.eps);
  optim::check_not_negative("AdamW", "weight_decay", o.weight_decay);
}

}  // namespace

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions options)
    : AdamW(std::vector<Group>{{std::move(parameters), options}}) {}

AdamW::AdamW(const std::vector<Group>& groups)
    : GroupOptimizer(groups, {"exp_avg", "exp_avg_sq"}, false, {"AdamW", check}) {}

void AdamW::update(const std::vector<Entry*>& active) {
  const auto calls = optim::make_calls(active, [&](std::size_t group) { return options(group).fused; });
  const at::Tensor divisor = std::exchange(divisor_, {});
  for (const Bucket& b : calls.fused) fused_step(b, options(b.group), divisor);
  for (const Bucket& b : calls.listed) {
    divide(b, divisor);
    foreach_step(b, options(b.group));
  }
}

}  // namespace dtensor
