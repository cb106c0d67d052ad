#include "plan/bounds/block_cost.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "plan/bounds/parameter_bytes.h"
#include "plan/cost/stage_step.h"

namespace plan {

using namespace dtensor;

namespace {

// Three stages, so that the middle one has blocks only. As few ranks as ep allows, of which two share the same experts.
// They are shards, or replicas, which gather experts only.
ParallelLayout block_layout(const ParallelLayout& l) {
  ParallelLayout block{.pp = 3, .cp = l.cp, .tp = l.tp, .ep = l.ep, .recompute = l.recompute, .bf16 = l.bf16};
  block.float8 = l.float8, block.bf16_parameters = l.bf16_parameters;
  (ParameterBytes::gathers(l) ? block.shard : block.replicate) = 2 * std::lcm(l.ep, l.cp * l.tp) / (l.cp * l.tp);
  return block;
}

constexpr std::int64_t kRows = 8;  // of the longer runs

// Whether each expert gets the same share of each row.
bool is_even(const Workload& work, const ParallelLayout& block) {
  if (!work.model.experts) return true;
  const auto& router = work.model.experts->router;
  return work.sequence / (block.cp * block.tp) * router.top_k % router.experts == 0;
}

// An event whose sizes are linear in the rows, from those of 1 and of kRows.
StepTrace::Event with_rows(const StepTrace::Event& one, StepTrace::Event many, std::int64_t rows) {
  const auto at_rows = [&](std::int64_t a, std::int64_t b) { return a + (b - a) * (rows - 1) / (kRows - 1); };
  many.flops = at_rows(one.flops, many.flops), many.bytes = at_rows(one.bytes, many.bytes);
  return many;
}

// Activations. Casts of float parameters report this kind, but do not grow with the rows.
double kept_bytes(const MemoryByKind& memory, bool casts) {
  const auto bytes = [&](MemoryKind kind) { return static_cast<double>(memory[static_cast<std::size_t>(kind)]); };
  return bytes(MemoryKind::activation) - (casts ? 0.5 * bytes(MemoryKind::parameter) : 0);
}

// Those between forward and backward.
double kept_bytes(const StepTrace& trace, bool casts) {
  int marks = 0;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    marks += trace.events[i].kind == StepTrace::Kind::mark ? 1 : 0;
    if (marks == 2) return kept_bytes(trace.memory[i], casts);
  }
  return 0;
}

bool of_experts(const StepTrace& trace, const StepTrace::Event& event) {
  return event.group >= 0 && trace.groups[static_cast<std::size_t>(event.group)].axis == "edp";
}

// When collectives of experts' units start, and when the first wait for them begins, if data parallelism takes no time.
class Moments {
 public:
  Moments(const StepTrace& trace, const HardwareModel& hardware) {
    auto marked = without_data_parallelism(trace);
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
      auto& event = marked.events[i];
      if (event.kind == StepTrace::Kind::mark) marks_.push_back(i);
      if (of_experts(trace, trace.events[i])) event = {.kind = StepTrace::Kind::mark, .name = event.name};
      if (event.kind == StepTrace::Kind::mark) all.push_back(i);
    }
    std::map<std::size_t, double> seconds;
    double now = 0;
    const auto marks = estimate_step(marked, hardware).marks;
    for (std::size_t k = 0; k < all.size(); now += marks[k++].second) seconds[all[k]] = now;
    seconds_ = seconds.at(marks_[2]) - seconds.at(marks_[0]);
    for (const auto i : all) {
      const auto& event = trace.events[i];
      if (event.kind != StepTrace::Kind::wait) continue;
      const auto start = static_cast<std::size_t>(event.start);
      windows_.push_back({trace.names[static_cast<std::size_t>(trace.events[start].name)], start > marks_[1], start,
                          seconds.at(start), seconds.at(i)});
    }
  }

  double seconds() const { return seconds_; }  // of forward and backward

  double longest(const std::string& collective, bool backward) const {
    double most = 0;
    for (const auto& w : windows_) {
      if (w.collective == collective && w.backward == backward) most = std::max(most, w.end - w.begin);
    }
    return most > 0 ? most : kHidden;
  }

  // From the start of a reduction to the wait for the gather that starts next.
  double reduction_and_gather() const {
    double most = 0;
    for (const auto& r : windows_) {
      if (r.collective != "reduce_scatter") continue;
      for (const auto& g : windows_) {
        if (g.collective == "all_gather" && g.start > r.start) most = std::max(most, g.end - r.begin);
      }
    }
    return most > 0 ? most : kHidden;
  }

 private:
  struct Window {
    std::string collective;
    bool backward;
    std::size_t start;  // event
    double begin, end;
  };
  std::vector<std::size_t> marks_;  // of the program
  std::vector<Window> windows_;
  double seconds_ = 0;
};

}  // namespace

const StepTrace& BlockCosts::run(const ParallelLayout& block, const Part& part, std::int64_t rows) {
  const RunKey key{block.str(), part.blocks, part.last, rows};
  if (const auto known = runs_.find(key); known != runs_.end()) return known->second;
  Workload work = work_;
  work.batch = rows * block.shard * block.replicate;
  auto& layers = work.model.layer;
  if (!layers.empty())
    std::fill(layers.begin(), layers.end(), layers.back());  // a second block is no dense first layer
  const DryRunOptions how{.trace_memory = rows == kRows && !part.last, .asynchronous = hardware_.asynchronous};
  return runs_.emplace(key, run_stage(work, block, {.part = part}, how).trace).first->second;
}

// Attention with cp runs more operators for more rows.
StepTrace BlockCosts::trace(const ParallelLayout& block, const Part& part, std::int64_t rows) {
  const auto &one = run(block, part, 1), &many = run(block, part, kRows);
  if (one.events.size() != many.events.size() || !is_even(work_, block)) return run(block, part, rows);
  StepTrace trace = many;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    trace.events[i] = with_rows(one.events[i], many.events[i], rows);
  }
  return trace;
}

BlockCost BlockCosts::measure(const ParallelLayout& l, std::int64_t rows) {
  const auto moments = [&](const ParallelLayout& block, const Part& part) {
    return Moments(trace(block, part, rows), hardware_);
  };
  const auto block = block_layout(l);
  const Part one{1, false, false}, two{2, false, false};
  const auto of_two = moments(block, two);
  BlockCost cost{.seconds = of_two.seconds() - moments(block, one).seconds()};
  auto of_head = l;
  of_head.ep = 1, of_head.recompute = Recomputation::none;
  of_head = block_layout(of_head);
  cost.head_seconds = std::max(0.0, moments(of_head, {1, false, true}).seconds() - moments(of_head, one).seconds());
  const auto kept = [&](const Part& part) { return kept_bytes(run(block, part, kRows), l.bf16 && !l.bf16_parameters); };
  cost.kept_bytes = std::max(0.0, kept(two) - kept(one)) * static_cast<double>(rows) / kRows;
  cost.forward_gather = of_two.longest("all_gather", false);
  cost.backward_gather = of_two.longest("all_gather", true);
  cost.reduction = of_two.longest("reduce_scatter", true);
  cost.reduction_and_gather = of_two.reduction_and_gather();
  return cost;
}

const BlockCost& BlockCosts::of(const ParallelLayout& l) {
  const auto rows = rank_rows(work_, l) / l.microbatches;
  const auto [entry, added] = known_.try_emplace({block_layout(l).str(), rows});
  if (!added) return entry->second;
  try {
    entry->second = measure(l, rows);
  } catch (const c10::Error&) {  // the dry run of the layout reports it
  }
  return entry->second;
}

}  // namespace plan
