// Whether two loss curves are the same curve: "equal to one device" in numbers.
#pragma once

#include <vector>

#include "args.h"
#include "run.h"

namespace train {

struct Comparison {
  std::vector<double> reference = {};   // one device's losses
  std::vector<double> difference = {};  // relative, one a step
  double largest = 0, bound = 0;
  // Of the first step that was run. Where that is step 0, no training has amplified rounding yet.
  double first = 0, first_bound = 0;
  std::int64_t first_step = 0;
  bool equal() const { return largest <= bound && first <= first_bound; }  // false for NaN
};

// Trains on one device and compares. The bound is 1e-9 in float64 and 1e-5 in float32 (1e-2 in bfloat16); where that is
// exceeded below float64, three times the spread of one device that sums its batch in another split, if that is more.
// Step 0 has no such excuse; the first step of a run that goes on has. The reference takes its batch in one piece, or
// in the run's own where pieces count.
Comparison compare_with_one_device(const Options& options, const Corpus& corpus,
                                   const std::vector<StepRecord>& records);

std::vector<double> losses(const std::vector<StepRecord>& records);
std::vector<double> relative_difference(const std::vector<double>& values, const std::vector<double>& reference);

}  // namespace train
