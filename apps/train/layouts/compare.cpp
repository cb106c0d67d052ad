// Compares two loss curves: "equal to one device" in numbers.
#include "train/layouts/compare.h"

#include <algorithm>
#include <cmath>

#include "train/layouts/larger.h"

namespace train {

std::vector<double> losses(const std::vector<StepRecord>& records) {
  std::vector<double> values;
  for (const StepRecord& record : records) values.push_back(record.loss);
  return values;
}

std::vector<double> relative_difference(const std::vector<double>& values, const std::vector<double>& reference) {
  std::vector<double> difference;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double scale = std::max(std::abs(reference.at(i)), 1e-30);
    difference.push_back(std::abs(values[i] - reference[i]) / scale);
  }
  return difference;
}

namespace {

double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double value : values) result = max_propagate_nan(result, value);
  return result;
}

// False if the loss of a batch is not a sum over its parts: router losses over the batch, capacities, experts that
// choose tokens, and forced balance, which starts anew with each part.
bool is_sum_over_pieces(const Options& options) {
  if (!options.experts) return true;
  const auto& e = *options.experts;
  return e.balance != "aux" && e.balance != "forced" && e.dispatcher != "capacity" && e.router != "experts";
}

double floor_of(const Options& options) {
  if (options.bit_identical) return 0;
  // A different last bit rounds to another float8 number now and then.
  if (options.float8 && !options.bf16 && options.dtype != Dtype::float64) return 1e-3;
  switch (options.bf16 ? Dtype::bfloat16 : options.dtype) {
    case Dtype::float64:
      return 1e-9;
    case Dtype::bfloat16:
      return 1e-2;
    default:
      return 1e-5;
  }
}

}  // namespace

Comparison compare_with_one_device(const Options& options, const Corpus& corpus, const std::vector<StepRecord>& records,
                                   const OnStep& on_step) {
  Comparison result;
  // A resumed run is compared from its first step on with a run from step 0.
  const auto from_there = [&](std::vector<double> all) {
    all.erase(all.begin(), all.begin() + records.front().step);
    return all;
  };
  const bool sums = is_sum_over_pieces(options);
  result.reference = from_there(losses(train_on_one_device(options, corpus, sums ? 1 : 0, on_step)));
  result.difference = relative_difference(losses(records), result.reference);
  result.largest = largest(result.difference);
  result.first = result.difference.front();
  result.first_step = records.front().step;
  result.bound = result.first_bound = floor_of(options);
  const bool has_spread = !options.bit_identical && options.dtype != Dtype::float64 && options.batch > 1 && sums;
  if (!result.equal() && has_spread) {
    const auto split = from_there(losses(train_on_one_device(options, corpus, /*pieces=*/2, on_step)));
    result.bound = std::max(result.bound, 3 * largest(relative_difference(split, result.reference)));
    if (result.first_step > 0) result.first_bound = result.bound;
  }
  return result;
}

}  // namespace train
