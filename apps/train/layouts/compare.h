// Compares two loss curves: "equal to one device" in numbers.
#pragma once

#include <vector>

#include "train/args.h"
#include "train/run.h"

namespace train {

struct Comparison {
  std::vector<double> reference = {};   // Losses of one device.
  std::vector<double> difference = {};  // Relative, one for each step.
  double largest = 0, bound = 0;
  // Of the first step of the run. If that is step 0, no training has amplified rounding yet.
  double first = 0, first_bound = 0;
  std::int64_t first_step = 0;
  bool equal() const { return largest <= bound && first <= first_bound; }  // False for NaN.
};

// Trains on one device and compares. The bound is 1e-9 in float64 and 1e-5 in float32 (1e-2 in bfloat16). If the
// difference exceeds it below float64, the bound is three times the difference of one device that sums its batch in
// another split. This does not apply to step 0, but to the first step of a resumed run. The reference uses the full
// batch, or the parts of the run if they affect the loss. Calls on_step after each step on one device.
Comparison compare_with_one_device(const Options& options, const Corpus& corpus, const std::vector<StepRecord>& records,
                                   const OnStep& on_step = {});

std::vector<double> losses(const std::vector<StepRecord>& records);
std::vector<double> relative_difference(const std::vector<double>& values, const std::vector<double>& reference);

}  // namespace train
