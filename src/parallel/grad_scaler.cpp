// The scale is a number of the program, the same on every rank because found-inf is.
#include "dtensor/grad_scaler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "dtensor/tensor.h"

namespace dtensor {
namespace {

// It and its inverse are floats, however often gradients overflow or do not.
double within_floats(double scale) {
  constexpr double smallest = std::numeric_limits<float>::min();
  return std::clamp(scale, smallest, 1 / smallest);
}

}  // namespace

GradScaler::GradScaler(const Options& options)
    : options_(options), state_{options.enabled ? options.init_scale : 1, 0} {
  TORCH_CHECK(options.growth_factor > 1 && options.backoff_factor < 1 && options.backoff_factor > 0 &&
                  options.growth_interval > 0 && options.init_scale > 0,
              "GradScaler: scale ", options.init_scale, ", growth ", options.growth_factor, " each ",
              options.growth_interval, " steps, backoff ", options.backoff_factor);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  // A half number times 65536 would overflow by itself.
  const bool half = loss.scalar_type() == at::kHalf || loss.scalar_type() == at::kBFloat16;
  return (half ? loss.to(at::kFloat) : loss) * state_.scale;
}

bool GradScaler::unscale_(const std::vector<at::Tensor>& parameters) {
  TORCH_CHECK(!unscaled_, "GradScaler: unscale_ was called before, without update() since");
  unscaled_ = true;
  finite_ = true;
  if (!options_.enabled) return true;
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : parameters) {
    if (p.grad().defined()) gradients.push_back(p.grad());
  }
  if (gradients.empty()) return true;
  const auto float_on_device = at::TensorOptions(at::kFloat).device(gradients[0].device());
  at::Tensor found = at::zeros({1}, float_on_device);
  const at::Tensor inverse = at::full({1}, 1 / state_.scale, float_on_device);
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse);
  finite_ = found.item<float>() == 0;
  return finite_;
}

bool GradScaler::step(const std::vector<at::Tensor>& parameters, const std::function<void()>& step) {
  if (!unscaled_) unscale_(parameters);
  if (finite_) step();
  return finite_;
}

void GradScaler::update() {
  unscaled_ = false;
  if (!options_.enabled) return;
  if (!finite_) {
    state_ = {within_floats(state_.scale * options_.backoff_factor), 0};
  } else if (++state_.good_steps == options_.growth_interval) {
    state_ = {within_floats(state_.scale * options_.growth_factor), 0};
  }
  finite_ = true;
}

}  // namespace dtensor
