// Both lists that ranks reduce are small, and equal on every rank afterwards.
#include "pipeline/grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace dtensor::pipeline {

at::Tensor norm_list_offsets(const std::vector<int>& own, const std::map<int, Stage>& stages, int last,
                             const Communicator& line, c10::DeviceType device) {
  // By stage of this rank: the number of parameters, and in the second row whether it is unknown.
  at::Tensor counts = at::zeros({2, last + 1}, at::kLong);
  for (const int index : own) {
    const auto stage = stages.find(index);
    const bool reported = stage != stages.end() && stage->second.parameters;
    counts[0][index] = reported ? static_cast<std::int64_t>(stage->second.list().size()) : 0;
    counts[1][index] = reported ? 0 : 1;
  }
  counts = counts.to(device);
  line.all_reduce(counts, ReduceOp::sum).wait();
  counts = counts.cpu();
  for (int stage = 0; stage <= last; ++stage) {
    TORCH_CHECK(counts[1][stage].item<std::int64_t>() == 0, "pipeline: clip_grad_norm_ needs the parameters of stage ",
                stage, "; pass them to set_stage");
  }
  return counts[0].cumsum(0);
}

UniqueParameterCounter::UniqueParameterCounter(const std::vector<TiedParameter>& tied,
                                               const std::map<int, Stage>& stages, int last, const Communicator& line,
                                               c10::DeviceType device)
    : tied_(tied) {
  for (const TiedParameter& parameter : tied) {
    const auto has_copy = [&](const auto& stage) {
      const at::TensorList list = stage.second.list();
      return std::any_of(list.begin(), list.end(), [&](const at::Tensor& p) { return parameter.is_copy(p); });
    };
    const auto found = std::find_if(stages.begin(), stages.end(), has_copy);
    first_.push_back(found == stages.end() ? last + 1 : found->first);
  }
  if (first_.empty()) return;
  const at::Tensor firsts = at::tensor(first_, at::kLong).to(device);
  line.all_reduce(firsts, ReduceOp::min).wait();
  for (std::size_t i = 0; i < first_.size(); ++i) first_[i] = firsts[static_cast<std::int64_t>(i)].item<std::int64_t>();
}

bool UniqueParameterCounter::counts(const at::Tensor& parameter, int stage) {
  if (!seen_.insert(parameter.unsafeGetTensorImpl()).second) return false;
  parameters_.push_back(parameter);
  for (std::size_t i = 0; i < tied_.size(); ++i) {
    if (!tied_[i].is_copy(parameter)) continue;
    const bool first = first_[i] == stage;
    if (first) first_[i] = -1;
    return first;
  }
  return true;
}

}  // namespace dtensor::pipeline
