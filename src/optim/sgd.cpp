// SGD on tensor lists, with ATen's fused kernel if the memory formats allow it.
#include "dtensor/optim.h"

#include <ATen/ATen.h>

#include "optim/option_checks.h"
#include "optim/parameter_lists.h"

namespace dtensor {
namespace {

using optim::Bucket;

void fused_step(const Bucket& b, const SGDOptions& o, bool first) {
  std::vector<at::Tensor> momenta;
  if (o.momentum != 0) momenta = b.slots(0);
  at::_fused_sgd_(b.parameters, b.gradients, momenta, o.weight_decay, o.momentum, o.lr, o.dampening, o.nesterov,
                  /*maximize=*/false, first);
}

// g += wd p;  m = mu m + (1 - dampening) g, in the first step m = g;  p -= lr (nesterov ? g + mu m : m).
void foreach_step(const Bucket& b, const SGDOptions& o, bool first) {
  std::vector<at::Tensor> gradients = b.gradients;
  if (o.weight_decay != 0) gradients = at::_foreach_add(gradients, b.parameters, o.weight_decay);
  if (o.momentum != 0) {
    const auto momenta = b.slots(0);
    if (first) {
      at::_foreach_copy_(momenta, gradients);
    } else {
      at::_foreach_mul_(momenta, o.momentum);
      at::_foreach_add_(momenta, gradients, 1 - o.dampening);
    }
    gradients = o.nesterov ? at::_foreach_add(gradients, momenta, o.momentum) : momenta;
  }
  at::_foreach_add_(b.parameters, gradients, -o.lr);
}

void check(const SGDOptions& o) {
  optim::check_not_negative("SGD", "momentum", o.momentum);
  optim::check_not_negative("SGD", "weight_decay", o.weight_decay);
  TORCH_CHECK_VALUE(!o.nesterov || (o.momentum > 0 && o.dampening == 0),
                    "SGD: Nesterov momentum requires momentum > 0 and dampening 0, got ", o.momentum, " and ",
                    o.dampening);
}

}  // namespace

SGD::SGD(std::vector<at::Tensor> parameters, SGDOptions options)
    : SGD(std::vector<Group>{{std::move(parameters), options}}) {}

SGD::SGD(const std::vector<Group>& groups) : GroupOptimizer(groups, {"momentum_buffer"}, false, {"SGD", check}) {}

// The first step of a parameter initializes its momentum, so it needs a separate call.
void SGD::update(const std::vector<Entry*>& active) {
  std::vector<Entry*> starting, going;
  for (Entry* entry : active) {
    const bool first = options(entry->group).momentum != 0 && !entry->slots[0].defined();
    (first ? starting : going).push_back(entry);
  }
  const auto fused = [&](std::size_t group) { return options(group).fused; };
  const optim::Calls start = optim::make_calls(starting, fused), rest = optim::make_calls(going, fused);
  for (const bool first : {true, false}) {
    const optim::Calls& calls = first ? start : rest;
    for (const Bucket& b : calls.fused) fused_step(b, options(b.group), first);
    for (const Bucket& b : calls.listed) foreach_step(b, options(b.group), first);
  }
}

}  // namespace dtensor
