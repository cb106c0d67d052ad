// Enumerates layouts, and computes the costs of those that may be the fastest.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "dtensor/estimate.h"
#include "internal/bytes_text.h"

namespace dtensor {

const char* to_string(Recomputation recomputation) {
  constexpr const char* kNames[] = {"none", "selective", "full"};
  return kNames[static_cast<std::size_t>(recomputation)];
}

std::string ParallelLayout::str() const {
  std::string text;
  const std::pair<const char*, std::int64_t> axes[] = {
      {"pp", pp}, {"replicate", replicate}, {"shard", shard}, {"cp", cp}, {"tp", tp}, {"ep", ep}};
  for (const auto& [name, size] : axes) {
    if (size > 1) text += fmt::format("{}{}={}", text.empty() ? "" : ",", name, size);
  }
  if (text.empty()) text = "one rank";
  if (microbatches > 1) text += fmt::format(" microbatches={}", microbatches);
  if (pp > 1) text += " " + schedule;
  if (pp > 1 && chunks > 0) text += fmt::format(" chunks={}", chunks);
  if (!reshard) text += " reshard=false";
  if (!accumulate_sharded) text += " accumulate=unsharded";
  if (offload) text += " offload";
  if (recompute != Recomputation::none) text += fmt::format(" recompute={}", to_string(recompute));
  if (bf16) text += " bf16";
  if (float8) text += " float8";
  if (bf16_parameters) text += " parameters=bf16";
  return text + (optimizer == "adamw" ? "" : " optimizer=" + optimizer);
}

namespace {

std::vector<std::int64_t> divisors(std::int64_t n, std::int64_t most) {
  std::vector<std::int64_t> all;
  for (std::int64_t d = 1; d <= std::min(n, most); ++d) {
    if (n % d == 0) all.push_back(d);
  }
  return all;
}

// Calls fn with the layout for each mesh. Of equal ranks of data parallelism, the most shards come first.
template <class Fn>
void for_each_mesh(const LayoutSpace& space, const Fn& fn) {
  ParallelLayout mesh;
  for (const auto pp : divisors(space.ranks, space.max_pp)) {
    for (const auto tp : divisors(space.ranks / pp, space.max_tp)) {
      for (const auto cp : divisors(space.ranks / pp / tp, space.max_cp)) {
        const auto data = space.ranks / pp / tp / cp;
        const auto shards = divisors(data, space.max_shard);
        for (const auto shard : std::vector(shards.rbegin(), shards.rend())) {
          if (data / shard > space.max_replicate) continue;
          for (const auto ep : divisors(space.ranks / pp, space.max_ep)) {
            mesh.pp = pp, mesh.replicate = data / shard, mesh.shard = shard, mesh.cp = cp, mesh.tp = tp, mesh.ep = ep;
            fn(mesh);
          }
        }
      }
    }
  }
}

// The schedules of a mesh, each with the numbers of stages of a rank.
std::vector<std::pair<std::string, std::int64_t>> schedules_of(const LayoutSpace& space, std::int64_t pp) {
  if (pp == 1) return {{"1f1b", 0}};
  std::vector<std::pair<std::string, std::int64_t>> all;
  for (const auto& schedule : space.schedules) {
    const bool any = schedule == "interleaved" || schedule == "bfs";
    for (const auto chunks : any ? space.chunks : std::vector<std::int64_t>{0}) all.emplace_back(schedule, chunks);
  }
  return all;
}

// Calls fn with the layout for each way to keep parameters and gradients.
template <class Fn>
void for_each_storage(const LayoutSpace& space, ParallelLayout layout, const Fn& fn) {
  const bool accumulates = layout.pp == 1 && layout.microbatches > 1;
  for (const bool reshard : space.reshard) {
    for (const bool sharded : accumulates ? space.accumulate_sharded : std::vector<bool>{true}) {
      for (const bool offload : space.offload) {
        if (offload && !sharded) continue;
        layout.reshard = reshard, layout.accumulate_sharded = sharded, layout.offload = offload;
        fn(layout);
      }
    }
  }
}

// Calls fn with the layout for each precision and optimizer.
template <class Fn>
void for_each_arithmetic(const LayoutSpace& space, ParallelLayout layout, const Fn& fn) {
  for (const bool bf16 : space.bf16) {
    for (const bool parameters : space.bf16_parameters) {
      if (parameters && !bf16) continue;
      for (const bool float8 : space.float8) {
        for (const auto& optimizer : space.optimizers) {
          layout.bf16 = bf16, layout.bf16_parameters = parameters, layout.float8 = float8, layout.optimizer = optimizer;
          fn(layout);
        }
      }
    }
  }
}

}  // namespace

std::vector<ParallelLayout> enumerate_layouts(const LayoutSpace& space) {
  TORCH_CHECK(space.ranks >= 1, "enumerate_layouts: expected at least 1 rank, got ", space.ranks);
  std::vector<ParallelLayout> all;
  for_each_mesh(space, [&](ParallelLayout layout) {
    for (const auto& [schedule, chunks] : schedules_of(space, layout.pp)) {
      for (const auto microbatches : space.microbatches) {
        for (const auto recompute : space.recompute) {
          layout.schedule = schedule, layout.chunks = chunks, layout.microbatches = microbatches;
          layout.recompute = recompute;
          for_each_arithmetic(space, layout, [&](const auto& computed) {
            for_each_storage(space, computed, [&](const auto& l) { all.push_back(l); });
          });
        }
      }
    }
  });
  return all;
}

namespace {

std::string too_large(const LayoutCost& cost, const SearchLimits& limits) {
  return fmt::format("needs {} of {}{}", bytes_text(cost.peak_bytes), bytes_text(limits.memory_bytes),
                     cost.largest.empty() ? "" : ": " + cost.largest);
}

void add(LayoutPlan& plan, PlannedLayout entry, const SearchLimits& limits) {
  const bool fits = limits.memory_bytes == 0 || entry.cost.peak_bytes <= limits.memory_bytes;
  if (!fits && entry.problem.empty()) entry.problem = too_large(entry.cost, limits);
  (fits ? plan.fitting : plan.too_large).push_back(std::move(entry));
}

// Layouts that the program accepts, in the order of their bounds.
std::vector<PlannedLayout> bounded(const std::vector<ParallelLayout>& layouts, const PlannedProgram& program,
                                   LayoutPlan& plan) {
  std::vector<PlannedLayout> accepted;
  for (const auto& layout : layouts) {
    const std::string reason = program.reject(layout);
    reason.empty() ? void(accepted.push_back({layout, program.bound(layout), {}})) : void(++plan.rejected[reason]);
  }
  std::stable_sort(accepted.begin(), accepted.end(),
                   [](const auto& a, const auto& b) { return a.cost.seconds < b.cost.seconds; });
  return accepted;
}

constexpr const char* kDominated = "a variant with less memory does not fit";

// Recomputation of more, more shards, what is sharded between uses and more microbatches do not need more memory. The
// second microbatch does: gradients accumulate.
bool needs_at_most(const ParallelLayout& a, const ParallelLayout& b) {
  const bool more = a.microbatches >= b.microbatches && b.microbatches > 1;
  return a.recompute >= b.recompute && a.shard >= b.shard && a.reshard >= b.reshard &&
         a.accumulate_sharded >= b.accumulate_sharded && (more || a.microbatches == b.microbatches);
}

class Search {
 public:
  Search(std::vector<PlannedLayout> entries, const PlannedProgram& program, const SearchLimits& limits,
         LayoutPlan& plan)
      : entries_(std::move(entries)), program_(program), limits_(limits), plan_(plan), costs_(entries_.size()) {
    for (std::size_t i = 0; i < entries_.size(); ++i) variants_[family_of(entries_[i].layout)].push_back(i);
  }

  void run() {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      PlannedLayout entry = entries_[i];
      decided_ = i;
      if (fits(entry.cost)) {
        entry.cost = program_.bound(entry.layout);
        if (entry.cost.seconds >= fastest_ * (1 - limits_.tolerance)) {
          ++plan_.slower;
          continue;
        }
        const auto cost = cost_of(i);
        if (!cost && failed_.contains(i)) ++plan_.rejected[failed_.at(i)];
        if (!cost) continue;
        entry.cost = *cost;
        if (!costs_[i]) entry.problem = kDominated;
      }
      add(plan_, entry, limits_);
      if (!plan_.fitting.empty()) fastest_ = std::min(fastest_, plan_.fitting.back().cost.seconds);
    }
  }

 private:
  bool fits(const LayoutCost& cost) const {
    return limits_.memory_bytes == 0 || cost.peak_bytes <= limits_.memory_bytes;
  }
  // Layouts that needs_at_most() compares.
  static std::string family_of(ParallelLayout layout) {
    layout.recompute = Recomputation::none, layout.microbatches = 1;
    layout.replicate = layout.shard = 1, layout.reshard = layout.accumulate_sharded = true;
    return layout.str() + layout.schedule;
  }

  // The cost of a variant with less memory if that does not fit, else the own cost. None: it does not run, or too many
  // have run.
  std::optional<LayoutCost> cost_of(std::size_t i) {
    const auto& variants = variants_.at(family_of(entries_[i].layout));
    std::size_t frugal = i;
    for (const auto other : variants) {
      if (!needs_at_most(entries_[other].layout, entries_[i].layout)) continue;
      if (costs_[other] && !fits(*costs_[other])) return costs_[other];
      if (needs_at_most(entries_[other].layout, entries_[frugal].layout)) frugal = other;
    }
    const auto limit = limits_.memory_bytes;
    const bool in_doubt = limit > 0 && entries_[frugal].cost.peak_bytes > limit / 2;
    if (frugal != i && in_doubt && computed(frugal) && !fits(*costs_[frugal])) return costs_[frugal];
    const bool known = costs_[i].has_value() || failed_.contains(i);
    if (!known && runs_ == limits_.most_runs) {
      ++plan_.not_tried;
      return std::nullopt;
    }
    return computed(i);
  }

  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  // None if the layout does not run, or if too many have run.
  const std::optional<LayoutCost>& computed(std::size_t i) {
    if (costs_[i] || failed_.contains(i) || runs_ == limits_.most_runs) return costs_[i];
    if (limits_.progress) {
      limits_.progress({runs_, decided_, entries_.size(), std::isfinite(fastest_) ? fastest_ : 0});
    }
    ++runs_;
    try {
      costs_[i] = program_.cost(entries_[i].layout);
    } catch (const c10::Error& error) {
      failed_[i] = first_line(error.what_without_backtrace());
    } catch (const std::exception& error) {
      failed_[i] = first_line(error.what());
    }
    return costs_[i];
  }

  std::vector<PlannedLayout> entries_;  // with bounds, in their order
  const PlannedProgram& program_;
  const SearchLimits& limits_;
  LayoutPlan& plan_;
  std::map<std::string, std::vector<std::size_t>> variants_;  // the entries of a family
  std::vector<std::optional<LayoutCost>> costs_;              // computed ones
  std::map<std::size_t, std::string> failed_;                 // why an entry does not run
  double fastest_ = std::numeric_limits<double>::infinity();
  std::size_t runs_ = 0, decided_ = 0;
};

}  // namespace

LayoutPlan search_layouts(const std::vector<ParallelLayout>& layouts, const PlannedProgram& program,
                          const SearchLimits& limits) {
  LayoutPlan plan;
  Search(bounded(layouts, program, plan), program, limits, plan).run();
  std::stable_sort(plan.fitting.begin(), plan.fitting.end(),
                   [](const auto& a, const auto& b) { return a.cost.seconds < b.cost.seconds; });
  std::stable_sort(plan.too_large.begin(), plan.too_large.end(),
                   [](const auto& a, const auto& b) { return a.cost.peak_bytes < b.cost.peak_bytes; });
  return plan;
}

std::string LayoutPlan::table(const SearchLimits& limits) const {
  constexpr std::size_t kShown = 8, kTooLarge = 4;
  std::string text =
      fmt::format("{} layouts fit, {} do not, {} are slower by their bounds", fitting.size(), too_large.size(), slower);
  text += not_tried > 0 ? fmt::format(", {} were not tried after {} runs\n", not_tried, limits.most_runs) : "\n";
  for (std::size_t i = 0; i < std::min(kShown, fitting.size()); ++i) {
    const auto& [layout, cost, problem] = fitting[i];
    text += fmt::format("  {:<3} {:>10.4g} s {:>9}  {}\n", i == 0 ? "->" : "", cost.seconds,
                        bytes_text(cost.peak_bytes), layout.str());
  }
  if (!fitting.empty()) text += "the fastest: " + fitting.front().cost.explanation + "\n";
  if (limits.memory_bytes > 0 && !too_large.empty()) text += "do not fit:\n";
  std::size_t shown = 0;
  for (const auto& entry : too_large) {
    if (entry.problem == kDominated || shown++ >= kTooLarge) continue;
    text += fmt::format("  {}: {}\n", entry.layout.str(), entry.problem);
  }
  if (!rejected.empty()) text += "not possible:\n";
  for (const auto& [reason, count] : rejected) text += fmt::format("  {} layouts: {}\n", count, reason);
  return text;
}

}  // namespace dtensor
