// Both lists that ranks reduce are small, and equal on every rank afterwards.
#include "pipeline/grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "dtensor/tensor.h"
#include "internal/bit_identical.h"

namespace dtensor::pipeline {

namespace {

// What all ranks must know of a stage, by row of a tensor.
enum StageFacts : std::int64_t { kParameters, kUnknown, kDoubles, kRegular, kStageFacts };

void count_parameters(const Stage& stage, const at::Tensor& facts) {
  for (const at::Tensor& p : stage.list()) {
    facts[kParameters] += 1;
    facts[kDoubles] += c10::toRealValueType(p.scalar_type()) == at::kDouble ? 1 : 0;
    facts[kRegular] += is_dtensor(p) ? 0 : 1;
  }
}

}  // namespace

NormList norm_list(const std::vector<int>& own, const std::map<int, Stage>& stages, int last, const Communicator& line,
                   c10::DeviceType device) {
  at::Tensor facts = at::zeros({kStageFacts, last + 1}, at::kLong);
  for (const int index : own) {
    const auto stage = stages.find(index);
    const bool reported = stage != stages.end() && stage->second.parameters;
    if (reported) count_parameters(stage->second, facts.select(1, index));
    if (!reported) facts[kUnknown][index] = 1;
  }
  facts = facts.to(device);
  line.all_reduce(facts, ReduceOp::sum).wait();
  facts = facts.cpu();
  for (int stage = 0; stage <= last; ++stage) {
    const auto of_stage = [&](StageFacts fact) { return facts[fact][stage].item<std::int64_t>(); };
    TORCH_CHECK(of_stage(kUnknown) == 0, "pipeline: clip_grad_norm_ needs the parameters of stage ", stage,
                "; pass them to set_stage");
    TORCH_CHECK_NOT_IMPLEMENTED(!is_bit_identical() || of_stage(kRegular) == 0,
                                "pipeline: clip_grad_norm_ of regular tensors has no bit-identical form: expected ",
                                "DTensors, got ", of_stage(kRegular), " regular tensors in stage ", stage);
  }
  return {facts[kParameters].cumsum(0), facts[kDoubles].sum().item<std::int64_t>() > 0};
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
