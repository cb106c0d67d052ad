// Learning rate schedules.
#include "dtensor/optim/optimizer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dtensor {
namespace {

// Rises from 0 at step 0 to 1 at `steps` and stays there.
double progress(std::int64_t step, std::int64_t steps) {
  return std::clamp(static_cast<double>(step) / static_cast<double>(steps), 0.0, 1.0);
}

void check_steps(const char* what, std::int64_t steps) {
  TORCH_CHECK(steps > 0, "LearningRate::", what, ": expected at least 1 step, got ", steps, " steps");
}

}  // namespace

LearningRate::LearningRate(Function rate) : rate_(std::move(rate)) {
  TORCH_CHECK(rate_, "LearningRate: expected a function, got an empty one");
}

LearningRate LearningRate::constant(double lr) {
  return LearningRate([lr](std::int64_t) { return lr; });
}

LearningRate LearningRate::linear(double lr, std::int64_t steps, double last) {
  check_steps("linear", steps);
  return LearningRate([=](std::int64_t step) { return lr + (last - lr) * progress(step, steps); });
}

LearningRate LearningRate::cosine(double lr, std::int64_t steps, double last) {
  check_steps("cosine", steps);
  return LearningRate([=](std::int64_t step) {
    return last + (lr - last) * (1 + std::cos(std::numbers::pi * progress(step, steps))) / 2;
  });
}

LearningRate LearningRate::wsd(double lr, std::int64_t steps, std::int64_t decay, double last) {
  check_steps("wsd", decay);
  TORCH_CHECK(decay <= steps, "LearningRate::wsd: expected decay <= steps, got a decay of ", decay,
              " steps in a run of ", steps);
  return LearningRate([=](std::int64_t step) { return lr + (last - lr) * progress(step - (steps - decay), decay); });
}

LearningRate LearningRate::after_warmup(std::int64_t steps) const {
  TORCH_CHECK(steps >= 0, "LearningRate::after_warmup: ", steps, "; expected a number of steps >= 0");
  return LearningRate([rate = rate_, steps](std::int64_t step) {
    if (step >= steps) return rate(step - steps);
    return rate(0) * static_cast<double>(step + 1) / static_cast<double>(steps + 1);
  });
}

double LearningRate::operator()(std::int64_t step) const {
  TORCH_CHECK(step >= 0, "LearningRate: step ", step, "; expected a step >= 0");
  return rate_(step);
}

}  // namespace dtensor
