// Which parameters of which stage count in the norm over all stages, and at which index. The lists that ranks reduce
// are small, and equal on every rank afterwards.
#include "pipeline/grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_set>

#include "dtensor/optim/clip.h"
#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"
#include "internal/bit_identical.h"
#include "internal/gradient_norms.h"

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

// The list of norms of all parameters.
struct NormList {
  at::Tensor ends;          // of each stage's norms, for stages 0 to the last
  bool has_double = false;  // a parameter of any stage
};

NormList norm_list(const ModelStages& model) {
  at::Tensor facts = at::zeros({kStageFacts, model.last + 1}, at::kLong);
  for (const int index : model.own) {
    const auto stage = model.stages.find(index);
    const bool reported = stage != model.stages.end() && stage->second.parameters;
    if (reported) count_parameters(stage->second, facts.select(1, index));
    if (!reported) facts[kUnknown][index] = 1;
  }
  facts = facts.to(model.device);
  model.line.all_reduce(facts, ReduceOp::sum).wait();
  facts = facts.cpu();
  for (int stage = 0; stage <= model.last; ++stage) {
    const auto of_stage = [&](StageFacts fact) { return facts[fact][stage].item<std::int64_t>(); };
    TORCH_CHECK(of_stage(kUnknown) == 0, "pipeline: clip_grad_norm_ needs the parameters of stage ", stage,
                "; pass them to set_stage");
    TORCH_CHECK_NOT_IMPLEMENTED(!is_bit_identical() || of_stage(kRegular) == 0,
                                "pipeline: clip_grad_norm_ of regular tensors has no bit-identical form: expected ",
                                "DTensors, got ", of_stage(kRegular), " regular tensors in stage ", stage);
  }
  return {facts[kParameters].cumsum(0), facts[kDoubles].sum().item<std::int64_t>() > 0};
}

// Counts a parameter with several copies (shared by stages, or tied) once: the first in the model's order, on whichever
// rank.
class UniqueParameterCounter {
 public:
  // Collective over `line`.
  explicit UniqueParameterCounter(const ModelStages& model);
  // Called for each parameter of this rank's stages in the model's order.
  bool counts(const at::Tensor& parameter, int stage);
  // The parameters that counts() was called with, each once.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  const std::vector<TiedParameter>& tied_;
  std::vector<std::int64_t> first_;  // by tied parameter: the stage that counts it; -1: counted
  std::unordered_set<const c10::TensorImpl*> seen_;
  std::vector<at::Tensor> parameters_;
};

UniqueParameterCounter::UniqueParameterCounter(const ModelStages& model) : tied_(model.tied) {
  for (const TiedParameter& parameter : tied_) {
    const auto has_copy = [&](const auto& stage) {
      const at::TensorList list = stage.second.list();
      return std::any_of(list.begin(), list.end(), [&](const at::Tensor& p) { return parameter.is_copy(p); });
    };
    const auto found = std::find_if(model.stages.begin(), model.stages.end(), has_copy);
    first_.push_back(found == model.stages.end() ? model.last + 1 : found->first);
  }
  if (first_.empty()) return;
  const at::Tensor firsts = at::tensor(first_, at::kLong).to(model.device);
  model.line.all_reduce(firsts, ReduceOp::min).wait();
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

}  // namespace

// Each parameter's sum of squares has an index in one list, in the model's order, which every rank adds up in the same
// way. One rank has a number's bits and the others zeros, which are exchanged as integers, since their sum has no
// order.
at::Tensor clip_grad_norm_(const ModelStages& model, double max_norm) {
  const LocalNoGradGuard scope;
  const auto [ends, has_double] = norm_list(model);
  UniqueParameterCounter once(model);
  const auto options = at::TensorOptions(at::kDouble).device(model.device);
  const at::Tensor squares = at::zeros({ends[-1].item<std::int64_t>()}, options);
  for (const auto& [index, stage] : model.stages) {
    if (stage.list().empty()) continue;
    std::vector<at::Tensor> counted;
    for (const at::Tensor& parameter : stage.list()) {
      counted.push_back(once.counts(parameter, index) ? parameter : at::Tensor());
    }
    const auto count = static_cast<std::int64_t>(counted.size());
    squares.narrow(0, ends[index].item<std::int64_t>() - count, count).copy_(get_grad_squares(counted, model.slice));
  }
  model.line.all_reduce(squares.view(at::kLong), ReduceOp::sum).wait();
  const bool rounds = is_bit_identical() && !has_double;  // as clip_grad_norm_() does
  // The host adds in one order, as it does without a pipeline.
  const at::Tensor added = is_bit_identical() ? squares.cpu() : squares;
  const at::Tensor total = norm_of_squares(added).to(rounds ? at::kFloat : at::kDouble);
  dtensor::clip_grads_with_norm_(once.parameters(), max_norm, total);
  return total.to(at::kDouble);
}

}  // namespace dtensor::pipeline
