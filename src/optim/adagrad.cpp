// Adagrad on tensor lists, with ATen's fused kernel if the memory formats allow it.
#include "dtensor/optim.h"

#include <ATen/ATen.h>

#include "optim/option_checks.h"
#include "optim/parameter_lists.h"

namespace dtensor {
namespace {

using optim::Bucket;

void start_sums(const Bucket& b, double value) {
  for (detail::SlotOptimizer::Entry* entry : b.entries) {
    if (!entry->slots[0].defined()) entry->slots[0] = at::full_like(entry->parameter, value);
  }
}

void fused_step(const Bucket& b, const AdagradOptions& o) {
  at::_fused_adagrad_(b.parameters, b.gradients, b.slots(0), b.steps(), o.lr, o.lr_decay, o.weight_decay, o.eps,
                      /*maximize=*/false);
}

// g += wd p;  s += g^2;  p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps).
void foreach_step(const Bucket& b, const AdagradOptions& o) {
  std::vector<at::Tensor> gradients = b.gradients;
  if (o.weight_decay != 0) gradients = at::_foreach_add(gradients, b.parameters, o.weight_decay);
  const auto sums = b.slots(0);
  at::_foreach_addcmul_(sums, gradients, gradients, 1);
  auto denominators = at::_foreach_sqrt(sums);
  at::_foreach_add_(denominators, o.eps);
  std::vector<at::Scalar> factors;
  for (const detail::SlotOptimizer::Entry* entry : b.entries) {
    factors.emplace_back(-o.lr / (1 + static_cast<double>(entry->steps - 1) * o.lr_decay));
  }
  at::_foreach_addcdiv_(b.parameters, gradients, denominators, factors);
}

void check(const AdagradOptions& o) {
  optim::check_not_negative("Adagrad", "lr_decay", o.lr_decay);
  optim::check_not_negative("Adagrad", "weight_decay", o.weight_decay);
  optim::check_not_negative("Adagrad", "initial_sum", o.initial_sum);
  optim::check_not_negative("Adagrad", "eps", o.eps);
}

}  // namespace

Adagrad::Adagrad(std::vector<at::Tensor> parameters, AdagradOptions options)
    : Adagrad(std::vector<Group>{{std::move(parameters), options}}) {}

Adagrad::Adagrad(const std::vector<Group>& groups) : GroupOptimizer(groups, {"sum"}, false, {"Adagrad", check}) {}

void Adagrad::update(const std::vector<Entry*>& active) {
  const auto calls = optim::make_calls(active, [](std::size_t /*group*/) { return true; });
  for (const Bucket& b : calls.fused) {
    start_sums(b, options(b.group).initial_sum);
    fused_step(b, options(b.group));
  }
  for (const Bucket& b : calls.listed) {
    start_sums(b, options(b.group).initial_sum);
    foreach_step(b, options(b.group));
  }
}

}  // namespace dtensor
