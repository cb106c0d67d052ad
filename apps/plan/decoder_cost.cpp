#include "plan/decoder_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dtensor/moe.h"
#include "plan/bounds/block_cost.h"
#include "plan/bounds/parameter_bytes.h"
#include "plan/bounds/transfers.h"
#include "plan/cost/pipeline_cost.h"
#include "plan/cost/stage_step.h"
#include "train/output/progress.h"

namespace plan {

using namespace dtensor;

namespace {

// Products of a forward pass: as many FLOPs as those for the gradients of the weights.
double product_seconds(const StepTrace& trace, const HardwareModel& hardware) {
  double seconds = 0;
  int marks = 0;
  for (const auto& event : trace.events) {
    marks += event.kind == StepTrace::Kind::mark ? 1 : 0;
    if (marks == 1 && event.kind == StepTrace::Kind::product) {
      seconds += hardware.seconds(event, trace.names[static_cast<std::size_t>(event.name)]);
    }
  }
  return seconds;
}

class DecoderCost {
 public:
  DecoderCost(const Workload& work, const HardwareModel& hardware, bool exact)
      : work_(work),
        hardware_(hardware),
        exact_(exact),
        size_(size_of(work)),
        parameters_(size_),
        transfers_(size_of_block(work), hardware),
        blocks_(work, hardware) {}

  std::string reject(const ParallelLayout& l) {
    const auto& c = work_.model;
    const auto divides = [](const char* what, std::int64_t size, std::int64_t by, const char* axis) {
      return size % by == 0 ? std::string() : fmt::format("{} {} is not a multiple of {}", what, size, axis);
    };
    const auto& router = c.experts ? c.experts->router : RouterOptions();
    for (const auto& reason : {divides("the heads of keys", c.checked().kv_heads, l.tp, "tp"),
                               divides("the sequence", work_.sequence, l.cp * l.tp, "cp x tp"),
                               divides("the batch", work_.batch, l.replicate * l.shard, "replicate x shard"),
                               c.experts ? divides("the number of experts", router.experts, l.ep, "ep") : "",
                               c.experts ? divides("the ranks of a stage,", l.ranks() / l.pp, l.ep, "ep") : ""}) {
      if (!reason.empty()) return reason;
    }
    if (rank_rows(work_, l) % l.microbatches != 0) return "the sequences of a rank are not a multiple of microbatches";
    if (l.pp > 1 && l.microbatches < l.pp) return "fewer microbatches than stages";
    if (l.pp > 1 && stages_of(l).schedule().stages() > c.layers) return "more stages than layers";
    if (!c.experts && l.ep > 1) return "no experts for ep";
    return l.offload ? reject_offload(l) : "";
  }

  // What computes, or what moves parameters and gradients of blocks, if that takes longer. Without temporaries.
  LayoutCost bound(const ParallelLayout& l) {
    const auto& stages = stages_of(l);
    const auto& block = blocks_.of(l);
    const auto blocks = static_cast<double>(equal_blocks(l)), microbatches = static_cast<double>(l.microbatches);
    const double idle = stages.splits_backward() ? 0 : static_cast<double>(l.pp - 1) * blocks / stages.of_rank();
    const double kept = least_kept(l, 0.95 * blocks * stages.most_in_flight() * block.kept_bytes);
    const auto known = known_least(l);
    LayoutCost cost;
    const double computes = (idle + microbatches * blocks) * block.seconds + microbatches * block.head_seconds;
    cost.seconds =
        std::max(known.seconds, transfers_.with_compute(l, {equal_blocks(l), stages.of_rank(), computes}, block));
    // with the gradient at the update, with activations before backward
    const double update = parameters_.updated(l), stored = parameters_.stored(l);
    cost.peak_bytes = static_cast<std::int64_t>(std::max(update, stored + std::max(kept, known.bytes)));
    cost.largest = kept > update - stored ? "activations alone, " + train::bytes_text(kept)
                                          : "parameters, gradients and states alone, " + train::bytes_text(update);
    return cost;
  }

  LayoutCost cost(const ParallelLayout& l) {
    const auto& stages = stages_of(l);
    const auto kinds = measure_kinds(l, stages);
    const auto step = estimate_pipeline(stages.schedule(), rank_times(kinds, stages), message_seconds(l));
    const auto& most = std::max_element(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) {
                         return a.second.rank.peak() < b.second.rank.peak();
                       })->second.rank;
    LayoutCost result;
    result.seconds = step.seconds;
    result.peak_bytes = static_cast<std::int64_t>(most.peak());
    result.host_bytes = static_cast<std::int64_t>(parameters_.host(l));
    const auto largest = std::max_element(most.memory.begin(), most.memory.end());
    result.largest = fmt::format("{} {}", to_string(static_cast<MemoryKind>(largest - most.memory.begin())),
                                 train::bytes_text(static_cast<double>(*largest)));
    learn(l, kinds, stages, step, most.peak());
    result.explanation = explain(l, kinds.begin()->second.rank.time, step);
    return result;
  }

 private:
  // Besides parameters. Activations of all microbatches in flight and sums of gradients exist at the same time if as
  // many microbatches follow those in flight at first; otherwise (gpipe) no forward pass may follow the first
  // gradients.
  double least_kept(const ParallelLayout& l, double activations) {
    const double sums = parameters_.gradient_sums(l), unsharded = parameters_.unsharded(l);
    const bool together = 2 * stages_of(l).most_in_flight() <= static_cast<double>(l.microbatches);
    return unsharded + (together ? activations + sums : std::max(activations, sums));
  }

  // Gradients of stages wait on the device, no formula says what experts keep there, and Muon communicates matrices.
  std::string reject_offload(const ParallelLayout& l) const {
    if (l.pp > 1) return "offloading of stages (pp)";
    if (!l.accumulate_sharded && l.microbatches > 1) return "offloading of unsharded sums of gradients";
    if (work_.model.experts) return "offloading of experts";
    return l.optimizer == "adamw" ? "" : "offloading with " + l.optimizer;
  }

  static constexpr std::int64_t kFew = 4;  // blocks of the smaller run: reductions of three are active at once

  const Stages& stages_of(const ParallelLayout& l) {
    const auto key = std::tuple(l.schedule, l.pp, l.microbatches, l.chunks);
    const auto found = stages_.find(key);
    return found != stages_.end() ? found->second : stages_.emplace(key, l).first->second;
  }
  std::int64_t blocks_of_rank(const ParallelLayout& l) const { return (work_.model.layers + l.pp - 1) / l.pp; }
  // Blocks of a rank that are as the last one: dense ones before layers with experts differ.
  std::int64_t equal_blocks(const ParallelLayout& l) const {
    const auto& layers = work_.model.layer;
    if (layers.empty()) return blocks_of_rank(l);
    const auto first = layers.end() - std::min<std::ptrdiff_t>(blocks_of_rank(l), std::ssize(layers));
    return std::count_if(first, layers.end(), [&](const auto& one) { return one.experts == layers.back().experts; });
  }

  // What layouts that compute the same need at least: seconds, and bytes besides parameters and states.
  struct Least {
    double seconds = 0, bytes = 0;
  };
  // Seconds of the ranks in the mean, without waits for other stages, by microbatches and recomputation.
  using Busy = std::map<std::pair<std::int64_t, Recomputation>, double>;
  // Layouts that differ in these values only are equal.
  static ParallelLayout any_shards(ParallelLayout l) {
    l.replicate = l.shard = 0;
    return l;
  }
  static ParallelLayout any_reshard(ParallelLayout l) {
    l.reshard = true;
    return any_shards(l);
  }
  static ParallelLayout sharded_sums(ParallelLayout l) {
    l.accumulate_sharded = true;
    return l;
  }
  Least least(const ParallelLayout& l, bool experts) const {
    const auto known = least_.find({l.str(), experts});
    return known == least_.end() ? Least{} : known->second;
  }

  // Unsharded sums of gradients take what sharded ones do, and more.
  Least known_least(const ParallelLayout& l) const {
    if (!ParameterBytes::gathers(l)) return {};
    const auto all = least(any_reshard(l), false), fewer_sums = least(any_reshard(sharded_sums(l)), false);
    const auto same = least(any_shards(l), true);
    return {std::max({all.seconds, fewer_sums.seconds, same.seconds, least_with_fewer(l)}),
            std::max({all.bytes, fewer_sums.bytes, same.bytes})};
  }

  // More microbatches fill a pipeline better, but they, as recomputation, take no rank less time.
  static ParallelLayout any_microbatches(ParallelLayout l) {
    l.microbatches = 0, l.recompute = Recomputation::none;
    return l;
  }
  // Over layouts with at most as many microbatches and as much recomputation, that keep the same: with the same shards,
  // and with any, without their communication.
  double least_with_fewer(const ParallelLayout& l) const {
    double least = 0;
    for (const auto& key :
         {std::pair(any_microbatches(l).str(), true), {any_microbatches(any_shards(l)).str(), false}}) {
      const auto known = busy_.find(key);
      if (known == busy_.end()) continue;
      for (const auto& [how, seconds] : known->second) {
        if (how.first <= l.microbatches && how.second <= l.recompute) least = std::max(least, seconds);
      }
    }
    return least;
  }

  // Costs of a layout bound those of layouts that differ in data parallelism only.
  void learn(const ParallelLayout& l, const StageKinds& kinds, const Stages& stages, const PipelineEstimate& step,
             double peak) {
    if (!ParameterBytes::gathers(l)) return;
    const auto add_busy = [&](const ParallelLayout& layouts, bool same_shards, double seconds) {
      auto& known = busy_[{any_microbatches(layouts).str(), same_shards}];
      const auto [entry, added] = known.try_emplace({l.microbatches, l.recompute}, seconds);
      entry->second = std::min(entry->second, seconds);
    };
    const auto add = [&](const ParallelLayout& key, StepEstimate StageResult::*time) {
      const auto least = estimate_pipeline(stages.schedule(), rank_times(kinds, stages, time), 0);
      // Gradients of shards, and what this layout keeps unsharded, may be a part of the peak.
      const double unsharded = time == &StageResult::compute ? parameters_.unsharded(l) : 0;
      const double stored = parameters_.updated(l) + unsharded;
      // Muon's update, and copies of shards from the host, need memory that depends on the shards.
      const bool by_shards = l.optimizer == "muon" || l.offload;
      const Least mine{least.seconds, by_shards ? 0 : std::max(0.0, peak - stored)};
      const auto [entry, added] = least_.try_emplace({key.str(), time != &StageResult::compute}, mine);
      auto& known = entry->second;
      known = {std::min(known.seconds, mine.seconds), std::min(known.bytes, mine.bytes)};
      return (1 - least.bubble) * least.seconds;
    };
    add(any_reshard(l), &StageResult::compute);
    add_busy(any_shards(l), false, add(any_shards(l), &StageResult::compute_and_experts));
    add_busy(l, true, (1 - step.bubble) * step.seconds);
  }

  // Ranks between the first, which has the most microbatches in flight, and the last, which has the logits, need less
  // memory than the first. So their stages are measured for the time only.
  StageKinds measure_kinds(const ParallelLayout& l, const Stages& stages) {
    StageKinds kinds;
    const auto add = [&](const Part& part, double in_flight) {
      if (!kinds.contains({part.first, part.last})) kinds[{part.first, part.last}] = measure(l, part, in_flight);
    };
    const auto blocks = blocks_of_rank(l);
    for (const std::size_t rank : {std::size_t{0}, static_cast<std::size_t>(l.pp - 1)}) {
      add(stages.part(rank, blocks), stages.in_flight(rank));
    }
    for (int stage = 0; stage < stages.schedule().stages(); ++stage) {
      add({blocks, stages.is_first(stage), stages.is_last(stage)}, 1);
    }
    return kinds;
  }

  double message_seconds(const ParallelLayout& l) const {
    if (l.pp == 1) return 0;
    const auto rows = rank_rows(work_, l) / l.microbatches;
    const auto bytes = rows * work_.sequence / l.cp / l.tp * work_.model.hidden * (l.bf16 ? 2 : 4);
    return hardware_.seconds("send", {0, l.ranks() / l.pp}, bytes);
  }

  // Time is extrapolated from a few microbatches; memory is highest with as many in flight as the schedule has.
  StageResult run(const ParallelLayout& l, const Part& part, int in_flight, bool trace_memory) const {
    const auto all = static_cast<int>(l.microbatches);
    const StageRun how{part, in_flight, exact_ ? all : std::min(all, std::max(3, in_flight + 1)), exact_};
    auto report = run_stage(work_, l, how, {.trace_memory = trace_memory, .asynchronous = hardware_.asynchronous});
    return {estimate_step(report.trace, hardware_),
            estimate_step(without_data_parallelism(report.trace), hardware_),
            estimate_step(without_data_parallelism(report.trace, {"edp"}), hardware_),
            product_seconds(report.trace, hardware_),
            report.peak_by_kind,
            std::move(report.trace)};
  }

  // A rank whose stages have a part of a microbatch in flight keeps less than the run with one more.
  StageKind measure(const ParallelLayout& l, Part part, double in_flight) {
    const auto most = std::ceil(in_flight);
    auto kind = measure(l, part, static_cast<int>(most));
    const double kept = blocks_.of(l).kept_bytes * static_cast<double>(part.blocks);
    kind.rank.memory[static_cast<std::size_t>(MemoryKind::activation)] -= std::llround((most - in_flight) * kept);
    return kind;
  }

  StageKind measure(const ParallelLayout& l, Part part, int in_flight) {
    const int stages = stages_of(l).of_rank();
    const auto run_blocks = [&](std::int64_t blocks, bool trace_memory) {
      part.blocks = blocks;
      return run(l, part, in_flight, trace_memory);
    };
    const auto blocks = part.blocks;
    // Muon's matrices are spread over the ranks: those that a rank owns do not grow with each block.
    const bool all = exact_ || blocks <= kFew + 1 || l.optimizer == "muon";
    if (all && stages == 1) {
      const auto result = run_blocks(blocks, false);
      return {result, result};
    }
    const auto few = run_blocks(kFew, true), more = run_blocks(kFew + 1, true);
    const auto added = static_cast<double>(blocks) / stages - kFew;
    return {all ? run_blocks(blocks, false) : extrapolate(few, more, static_cast<double>(blocks - kFew)),
            extrapolate_times(few, more, added)};
  }

  std::string explain(const ParallelLayout& l, const StepEstimate& stage, const PipelineEstimate& step) const {
    std::string text = stage.shares();
    if (l.pp > 1) text += fmt::format("; bubble {:.0f}%", 100 * step.bubble);
    if (l.offload) text += "; in host memory " + train::bytes_text(parameters_.host(l));
    return text + fmt::format("; MFU {:.1f}% (12LdS), {:.1f}% (6LdS)",
                              100 * utilization(size_.flops_per_token, work_, l, hardware_, step.seconds),
                              100 * utilization(size_.causal_flops_per_token, work_, l, hardware_, step.seconds));
  }

  Workload work_;
  HardwareModel hardware_;
  bool exact_;
  ModelSize size_;  // of the model
  ParameterBytes parameters_;
  Transfers transfers_;
  BlockCosts blocks_;
  std::map<std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>, Stages> stages_;
  std::map<std::pair<std::string, bool>, Busy> busy_;    // by the rest of the layout, and whether shards count
  std::map<std::pair<std::string, bool>, Least> least_;  // by layout, and whether experts' data parallelism counts
};

}  // namespace

PlannedProgram planned_decoder(const Workload& work, const HardwareModel& hardware, bool exact) {
  const auto cost = std::make_shared<DecoderCost>(work, hardware, exact);
  return {[cost](const ParallelLayout& l) { return cost->reject(l); },
          [cost](const ParallelLayout& l) { return cost->bound(l); },
          [cost](const ParallelLayout& l) { return cost->cost(l); }};
}

}  // namespace plan
