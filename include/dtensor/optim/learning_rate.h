// The learning rate of each step as an object: a function of the step alone, so that a run may be left and taken up at
// any step, on any number of ranks.
//
//   const LearningRate rate = LearningRate::cosine(3e-4, 900).after_warmup(100);  // 1000 steps
//   optimizer.set_lr(rate(step));
#pragma once

#include <cstdint>
#include <functional>

#include "dtensor/export.h"

namespace dtensor {

// The learning rate of a step, to be given to Optimizer::set_lr.
class DTENSOR_API LearningRate {
 public:
  using Function = std::function<double(std::int64_t step)>;  // steps count from 0
  explicit LearningRate(Function rate);                       // one of the user's own

  // The same at every step.
  static LearningRate constant(double lr);
  // From lr at step 0 to `last` at step `steps` and from there on: along a line, or half a period of a cosine
  // (Loshchilov and Hutter, arXiv:1608.03983).
  static LearningRate linear(double lr, std::int64_t steps, double last = 0);
  static LearningRate cosine(double lr, std::int64_t steps, double last = 0);
  // Warm-up, stable, decay (Hu et al., arXiv:2404.06395): lr up to `decay` steps before the end, then along a line.
  static LearningRate wsd(double lr, std::int64_t steps, std::int64_t decay, double last = 0);

  // Rises along a line over the first `steps` steps, from 1 / (steps + 1) of this rate's first value; then this rate
  // from its beginning.
  LearningRate after_warmup(std::int64_t steps) const;

  double operator()(std::int64_t step) const;

 private:
  Function rate_;
};

}  // namespace dtensor
