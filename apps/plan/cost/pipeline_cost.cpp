#include "plan/cost/pipeline_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace plan {

using namespace dtensor;

Stages::Stages(const ParallelLayout& l)
    : schedule_(pipeline::make_schedule(l.schedule, static_cast<int>(l.pp), static_cast<int>(l.microbatches),
                                        static_cast<int>(l.chunks))),
      live_(pipeline::live_activations(schedule_)),
      of_rank_(schedule_.stages() / static_cast<int>(l.pp)) {}

std::vector<int> Stages::of(std::size_t rank) const {
  std::set<int> stages;
  for (const auto& action : schedule_.ranks[rank]) stages.insert(action.stage);
  return {stages.begin(), stages.end()};
}

Part Stages::part(std::size_t rank, std::int64_t blocks) const {
  const auto stages = of(rank);
  return {blocks, is_first(stages.front()), is_last(stages.back())};
}

double Stages::most_in_flight() const {
  return static_cast<double>(*std::max_element(live_.begin(), live_.end())) / of_rank_;
}

namespace {

// Whether the mark is of a forward or backward pass.
bool is_action(const std::string& mark) { return mark != "update"; }

double outside_of_actions(const StepEstimate& time) {
  double seconds = time.seconds;
  for (const auto& [mark, part] : time.marks) seconds -= is_action(mark) ? part : 0;
  return std::max(0.0, seconds);
}

// The marks of a stage ("0F1", "0B1") under its number. Where the schedule splits backward, gradients of weights are
// separate.
void add_marks(StepEstimate& rank, const std::vector<std::pair<std::string, double>>& marks, int stage, bool splits,
               double weights) {
  for (const auto& [mark, seconds] : marks) {
    if (!is_action(mark)) continue;
    rank.seconds += seconds;
    const bool undivided = !splits || mark[1] == 'F';
    const double later = undivided ? 0 : std::min(weights, seconds);
    rank.marks.emplace_back(fmt::format("{}{}{}", stage, undivided ? mark[1] : 'I', mark.substr(2)), seconds - later);
    if (!undivided) rank.marks.emplace_back(fmt::format("{}W{}", stage, mark.substr(2)), later);
  }
}

}  // namespace

std::vector<StepEstimate> rank_times(const StageKinds& kinds, const Stages& stages, StepEstimate StageResult::*time) {
  std::vector<StepEstimate> ranks(stages.schedule().ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const int stage : stages.of(r)) {
      const auto& kind = kinds.at({stages.is_first(stage), stages.is_last(stage)}).stage;
      add_marks(ranks[r], (kind.*time).marks, stage, stages.splits_backward(), kind.weights);
    }
    if (time != &StageResult::time) continue;
    const auto part = stages.part(r, 0);
    ranks[r].seconds += outside_of_actions(kinds.at({part.first, part.last}).rank.time);
  }
  return ranks;
}

}  // namespace plan
