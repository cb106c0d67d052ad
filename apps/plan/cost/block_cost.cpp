#include "plan/cost/block_cost.h"

#include <algorithm>
#include <numeric>

#include "plan/cost/stage_step.h"

namespace plan {

using namespace dtensor;

namespace {

// Three stages, so that the middle one has blocks only. As few ranks as ep allows.
ParallelLayout block_layout(const ParallelLayout& l) {
  ParallelLayout block{.pp = 3, .cp = l.cp, .tp = l.tp, .ep = l.ep, .recompute = l.recompute, .bf16 = l.bf16};
  block.reshard = false, block.float8 = l.float8, block.bf16_parameters = l.bf16_parameters;
  block.shard = std::lcm(l.ep, l.cp * l.tp) / (l.cp * l.tp);
  return block;
}

std::int64_t rows_of_microbatch(const Workload& work, const ParallelLayout& l) {
  return rank_rows(work, l) / l.microbatches;
}

// Rows of at least 65536 tokens on a rank, and not fewer than a microbatch has: what a block does once for any number
// of rows, such as casts of parameters, must not be multiplied.
std::int64_t rows_of_block(const Workload& work, const ParallelLayout& l) {
  return std::max((65536 * l.cp + work.sequence - 1) / work.sequence, rows_of_microbatch(work, l));
}

struct Run {
  double seconds = 0, kept = 0;
};

// Activations. Casts of float parameters report this kind, but do not grow with the rows.
double kept_bytes(const MemoryByKind& memory, bool casts) {
  const auto bytes = [&](MemoryKind kind) { return static_cast<double>(memory[static_cast<std::size_t>(kind)]); };
  return bytes(MemoryKind::activation) - (casts ? 0.5 * bytes(MemoryKind::parameter) : 0);
}

Run run(const Workload& work, const ParallelLayout& block, const Part& part, const HardwareModel& h) {
  const auto report = run_stage(work, block, {.part = part}, {.trace_memory = true, .asynchronous = h.asynchronous});
  Run result;
  for (const auto& [name, seconds] : estimate_step(without_data_parallelism(report.trace), h).marks) {
    if (name != "update") result.seconds += seconds;
  }
  int marks = 0;
  for (std::size_t i = 0; i < report.trace.events.size(); ++i) {
    marks += report.trace.events[i].kind == StepTrace::Kind::mark ? 1 : 0;
    if (marks < 2) continue;
    return result.kept = kept_bytes(report.trace.memory[i], block.bf16 && !block.bf16_parameters), result;
  }
  return result;
}

}  // namespace

BlockCost BlockCosts::measure(const ParallelLayout& block, std::int64_t rows) const {
  Workload work = work_;
  work.batch = rows * block.shard;
  auto& layers = work.model.layer;
  if (!layers.empty())
    std::fill(layers.begin(), layers.end(), layers.back());  // a second block is no dense first layer
  try {
    const auto one = run(work, block, {1, false, false}, hardware_),
               two = run(work, block, {2, false, false}, hardware_);
    const auto last = run(work, block, {1, false, true}, hardware_);
    return {two.seconds - one.seconds, std::max(0.0, last.seconds - one.seconds), std::max(0.0, two.kept - one.kept)};
  } catch (const c10::Error&) {  // the dry run of the layout reports it
    return {};
  }
}

BlockCost BlockCosts::of(const ParallelLayout& l) {
  const auto block = block_layout(l);
  const auto rows = rows_of_block(work_, l);
  const auto [entry, added] = known_.try_emplace({block.str(), rows});
  if (added) entry->second = measure(block, rows);
  const double share = static_cast<double>(rows_of_microbatch(work_, l)) / static_cast<double>(rows);
  const auto& [seconds, head, kept] = entry->second;
  return {share * seconds, share * head, share * kept};
}

}  // namespace plan
