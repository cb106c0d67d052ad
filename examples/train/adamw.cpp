// One optimizer step as on one device: global gradient clipping and fused AdamW over lists, in plain ATen.
#include "adamw.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace train {

at::Tensor global_norm(at::TensorList tensors) {
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(tensors, 2)), 2);
}

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions options)
    : options_(options), parameters_(std::move(parameters)) {
  for (const at::Tensor& p : parameters_) {
    averages_.push_back(at::zeros_like(p));
    squares_.push_back(at::zeros_like(p));
    steps_.push_back(at::zeros({}, at::kFloat));  // the fused kernel reads a step count a parameter
  }
}

double AdamW::next_lr() const {
  if (options_.warmup == 0) return options_.lr;
  const double reached = static_cast<double>(steps_done_ + 1) / static_cast<double>(options_.warmup);
  return options_.lr * std::min(1.0, reached);
}

at::Tensor AdamW::step() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : parameters_) gradients.push_back(p.grad());
  at::Tensor norm = global_norm(gradients);
  if (options_.clip > 0) {
    at::_foreach_mul_(gradients, at::clamp_max(options_.clip / (norm + 1e-6), 1.0));
  }
  at::_foreach_add_(steps_, 1);
  at::_fused_adamw_(parameters_, gradients, averages_, squares_, {}, steps_, next_lr(), options_.beta1, options_.beta2,
                    options_.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
  for (at::Tensor& p : parameters_) p.mutable_grad().reset();
  ++steps_done_;
  return norm;
}

}  // namespace train
