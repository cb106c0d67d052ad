// Dispatchers that sort rows by expert, exchange them with an all-to-all and reorder them by local expert. They differ
// in how ranks learn the numbers of rows.
#include "dtensor/moe/dispatch.h"

#include <ATen/ATen.h>

#include <c10/core/InferenceMode.h>

#include <mutex>
#include <numeric>
#include <utility>

#include "internal/aten_scopes.h"
#include "moe/counting.h"
#include "moe/dispatch/dispatch_details.h"
#include "moe/dispatch/permute.h"
#include "moe/dispatch/weighted_rows.h"
#include "moe/routing/router_parts.h"

namespace dtensor {
namespace {

using Sizes = std::vector<std::int64_t>;

int size_of(const Communicator& ranks) { return ranks ? ranks.size() : 1; }
int rank_of(const Communicator& ranks) { return ranks ? ranks.rank() : 0; }

// State of a row exchange.
struct RowDetails {
  Sizes input_splits, output_splits;      // rows to and from each rank
  Sizes blocks, order;                    // sizes of the received blocks, and their order by local expert
  std::shared_ptr<SharedCounts> pending;  // counts whose exchange is in progress
};

RowDetails& details_of(const DispatchPlan& plan) { return moe::details_of<RowDetails>(plan, "an exchange of rows"); }

// Completes a plan with counts [ranks, experts] of all ranks.
void plan_rows(DispatchPlan& plan, const at::Tensor& counts, int me) {
  auto& details = details_of(plan);
  const auto ranks = counts.size(0), experts = counts.size(1), local = experts / ranks;
  const auto* count = counts.const_data_ptr<std::int64_t>();
  plan.rows.assign(local, 0);
  for (std::int64_t r = 0; r < ranks; ++r) {
    const auto* to_me = count + r * experts + me * local;
    const auto* mine = count + me * experts + r * local;
    details.input_splits.push_back(std::accumulate(mine, mine + local, std::int64_t{0}));
    details.output_splits.push_back(std::accumulate(to_me, to_me + local, std::int64_t{0}));
    details.blocks.insert(details.blocks.end(), to_me, to_me + local);
    for (std::int64_t e = 0; e < local; ++e) plan.rows[e] += to_me[e];
  }
  for (std::int64_t e = 0; e < local; ++e) {
    for (std::int64_t r = 0; r < ranks; ++r) details.order.push_back(r * local + e);
  }
}

// Dispatcher with an all-to-all of rows; without communication on one rank.
class RowExchange : public Dispatcher, public moe::MovesRows {
 public:
  RowExchange(Communicator ranks, const char* name) : Dispatcher(std::move(ranks)), name_(name) {}

  DispatchPlan prepare(const Routing& routing, const TokenLayout&) const override {
    check_experts(routing);
    auto plan = sort_entries(routing);
    details_of(plan).pending = routing.counts;
    routing.counts->begin(ranks_);  // runs while dispatch() copies rows
    return plan;
  }

  at::Tensor dispatch(const at::Tensor& x, DispatchPlan& plan, const std::function<void()>& overlap_fn) const override {
    const auto& details = details_of(plan);
    const auto sorted = moe::sent_rows(x, plan);
    if (size_of(ranks_) == 1) {  // the host does not need the number of rows per expert
      if (details.pending) plan.counts = details.pending->local();
      if (plan.counts.is_cpu()) plan.host_rows();
      if (overlap_fn) overlap_fn();
      return sorted;
    }
    if (details.pending) take_counts(plan);
    const auto taken = all_to_all(sorted, details.output_splits, details.input_splits, ranks_, overlap_fn);
    return gather_blocks(taken, details.blocks, details.order);
  }

  at::Tensor combine(const at::Tensor& rows, const DispatchPlan& plan, const at::Tensor& base,
                     at::TensorList keep) const override {
    auto back = rows;
    if (size_of(ranks_) > 1) {
      const auto& details = details_of(plan);
      const auto spread = scatter_blocks(rows, details.blocks, details.order);
      back = all_to_all(spread, details.input_splits, details.output_splits, ranks_);
    }
    const auto weights = plan.apply_probs_before_experts ? at::Tensor() : plan.weights;
    return base.defined() ? add_unpermuted_tokens(base, back, plan.position, weights, keep)
                          : unpermute_tokens(back, plan.position, weights);
  }

  const char* name() const override { return name_; }

 protected:
  void check_experts(const Routing& routing) const {
    TORCH_CHECK(routing.expert_count % size_of(ranks_) == 0, name_, ": ", routing.expert_count,
                " experts are not divisible by ", size_of(ranks_), " ranks");
  }

  void take_counts(DispatchPlan& plan) const {
    const auto pending = std::exchange(details_of(plan).pending, nullptr);
    const auto local = pending->local().size(0) / size_of(ranks_);
    plan_rows(plan, pending->of_ranks(ranks_), rank_of(ranks_));
    plan.counts = pending->on_device(ranks_).narrow(1, rank_of(ranks_) * local, local).sum(0);
  }

  // Appends zero rows to the segment of each pair of ranks, up to `segment` rows. Receivers drop them.
  void pad_segments(DispatchPlan& plan, std::int64_t segment) const {
    auto& details = details_of(plan);
    const auto ranks = static_cast<std::int64_t>(size_of(ranks_));
    const auto local = static_cast<std::int64_t>(plan.rows.size());
    const bool exact =
        std::all_of(details.input_splits.begin(), details.input_splits.end(), [&](auto s) { return s == segment; }) &&
        std::all_of(details.output_splits.begin(), details.output_splits.end(), [&](auto s) { return s == segment; });
    if (exact) return;
    shift_positions(plan, segment);
    Sizes blocks, order;
    for (std::int64_t r = 0; r < ranks; ++r) {
      blocks.insert(blocks.end(), details.blocks.begin() + r * local, details.blocks.begin() + (r + 1) * local);
      blocks.push_back(segment - details.output_splits[r]);
    }
    for (const auto b : details.order) order.push_back(b / local * (local + 1) + b % local);
    details.blocks = blocks;
    details.order = order;
    details.input_splits.assign(ranks, segment);
    details.output_splits.assign(ranks, segment);
    plan.sent = ranks * segment;
  }

  static DispatchPlan sort_entries(const Routing& routing) {
    const auto kept = routing.empty < 0 ? -1 : routing.experts.numel() - routing.empty;
    const auto sorted = routing.order
                            ? *routing.order
                            : sort_by_bin(routing.experts, routing.expert_count, routing.counts->local(), kept);
    DispatchPlan plan;
    plan.position = sorted.position.view(routing.experts.sizes());
    plan.weights = routing.weights;
    plan.sent = sorted.order.size(0);
    plan.details = std::make_shared<RowDetails>();
    return plan;
  }

 private:
  static void shift_positions(DispatchPlan& plan, std::int64_t segment) {
    const Sizes& splits = details_of(plan).input_splits;
    Sizes ends(splits.size());
    std::partial_sum(splits.begin(), splits.end(), ends.begin());
    const auto bounds = at::tensor(ends, plan.position.options());
    const auto target = at::bucketize(plan.position, bounds, false, /*right=*/true);
    const auto starts = bounds - at::tensor(splits, plan.position.options());
    plan.position = plan.position - starts.index_select(0, target.flatten()).view_as(target) + target * segment;
  }

  const char* name_;
};

class CapacityExchange final : public RowExchange, public moe::DropsEntries {
 public:
  CapacityExchange(Communicator ranks, CapacityOptions options)
      : RowExchange(std::move(ranks), "CapacityAllToAll"), options_(options) {}

  DispatchPlan prepare(const Routing& routing, const TokenLayout& layout) const override {
    Routing kept = routing;
    const auto dropped = drop_over_capacity(kept, layout, options_);
    auto plan = RowExchange::prepare(kept, layout);
    plan.dropped = dropped;
    return plan;
  }

 private:
  CapacityOptions options_;
};

// Exchanges counts as RowExchange does. All ranks have all counts, so all know the largest segment.
class PaddedExchange final : public RowExchange {
 public:
  explicit PaddedExchange(Communicator ranks) : RowExchange(std::move(ranks), "PaddedAllToAll") {}

  at::Tensor dispatch(const at::Tensor& x, DispatchPlan& plan, const std::function<void()>& overlap_fn) const override {
    auto& details = details_of(plan);
    if (size_of(ranks_) > 1 && details.pending) {
      const auto ranks = static_cast<std::int64_t>(size_of(ranks_));
      const auto counts = details.pending->of_ranks(ranks_);
      const auto segment = counts.reshape({ranks, ranks, -1}).sum(2).max().item<std::int64_t>();
      take_counts(plan);
      const auto rows = plan.sent;
      pad_segments(plan, segment);
      moe::count(&MoeCounters::padding_rows, plan.sent - rows);
    }
    return RowExchange::dispatch(x, plan, overlap_fn);
  }
};

// Derives the numbers of rows from the round-robin choice. Segments to all ranks have equal size: the rows, then zero
// rows as padding, which the receiver drops.
class EqualExchange final : public RowExchange, public moe::NeedsEqualTokens {
 public:
  explicit EqualExchange(Communicator ranks) : RowExchange(std::move(ranks), "EqualAllToAll") {}

  DispatchPlan prepare(const Routing& routing, const TokenLayout& layout) const override {
    TORCH_CHECK(routing.round_robin, "EqualAllToAll requires RouterChoice::round_robin with ",
                "the same number of tokens on all ranks; use DispatchKind::all_to_all otherwise");
    TORCH_CHECK(!layout.index.defined(),
                "EqualAllToAll requires that the tokens of a rank are contiguous in the batch");
    const auto here = routing.experts.size(0);
    const std::int64_t spread = layout.ranks ? layout.ranks.size() : 1;
    TORCH_CHECK(layout.total < 0 || layout.total == here * spread, "EqualAllToAll: ", layout.total, " tokens on ",
                spread, " ranks, ", here,
                " on this one; expected the same number on all ranks (use DispatchKind::all_to_all otherwise)");
    check_experts(routing);
    moe::count(&MoeCounters::equal_exchanges);
    const std::lock_guard lock(mutex_);
    if (!cached_for_ || cached_for_ != routing.order || !(cached_layout_ == layout.ranks) ||
        cached_first_ != layout.first) {
      kept_ = make_plan(routing, layout);
      cached_for_ = routing.order;
      cached_layout_ = layout.ranks;
      cached_first_ = layout.first;
    } else {
      moe::count(&MoeCounters::cached_plans);
    }
    auto plan = kept_;
    plan.weights = routing.weights;
    return plan;
  }

  // If ranks have different numbers of tokens, their segment sizes differ, and the exchange fails.
  at::Tensor dispatch(const at::Tensor& x, DispatchPlan& plan, const std::function<void()>& overlap_fn) const override {
    try {
      return RowExchange::dispatch(x, plan, overlap_fn);
    } catch (const CommError& error) {
      throw CommError(c10::str(error.what(),
                               "; EqualAllToAll requires the same number of tokens on all ranks, this rank has ",
                               x.size(0), " (use DispatchKind::all_to_all otherwise)"));
    }
  }

 private:
  DispatchPlan make_plan(const Routing& routing, const TokenLayout& layout) const {
    const c10::InferenceMode off(false);  // the cached plan also serves passes with gradients
    const NoMeshScopeGuard regular;
    auto plan = sort_entries(routing);
    plan.weights = at::Tensor();
    plan_rows(plan, counts_for_equal_tokens(routing, layout), rank_of(ranks_));
    plan.counts = at::tensor(plan.rows, at::kLong).to(plan.position.device());
    if (size_of(ranks_) > 1) pad_segments(plan, segment_size(plan, size_of(ranks_)));
    return plan;
  }

  at::Tensor counts_for_equal_tokens(const Routing& routing, const TokenLayout& layout) const {
    const auto experts = routing.expert_count, entries = routing.experts.numel();
    const auto positions = indices_of_members(layout);
    auto counts = at::empty({size_of(ranks_), experts}, at::kLong);
    auto* count = counts.mutable_data_ptr<std::int64_t>();
    for (int r = 0; r < size_of(ranks_); ++r) {
      const auto first = positions[static_cast<std::size_t>(r)] * entries % experts;
      for (std::int64_t e = 0; e < experts; ++e) {
        const auto turn = (e - first + experts) % experts;  // index of the first entry with this expert
        count[r * experts + e] = entries > turn ? (entries - turn - 1) / experts + 1 : 0;
      }
    }
    return counts;
  }

  // The part of the batch that each rank of `ranks_` has. If no other rank has different tokens, each rank has its own
  // batch.
  Sizes indices_of_members(const TokenLayout& layout) const {
    const auto members = static_cast<std::size_t>(size_of(ranks_));
    if (!layout.ranks || !ranks_) return Sizes(members, layout.ranks ? layout.ranks.rank() : 0);
    auto positions = moe::indices_among(ranks_, layout.ranks);
    TORCH_CHECK(positions.size() == members, "EqualAllToAll: of ", members, " ranks that share the experts ",
                members - positions.size(), " have no separate tokens (use DispatchKind::all_to_all)");
    return positions;
  }

  // The largest segment between any two ranks, which all ranks can compute: at most ceil(entries / experts) rows per
  // expert.
  std::int64_t segment_size(const DispatchPlan& plan, std::int64_t ranks) const {
    const auto entries = plan.position.numel(), local = static_cast<std::int64_t>(plan.rows.size());
    const auto experts = local * ranks, rounds = entries / experts, rest = entries % experts;
    return rounds * local + std::min(rest, local);
  }

  // Plan of the last order, without weights. Guarded by a mutex, because recomputation may run on another thread.
  mutable std::mutex mutex_;
  mutable DispatchPlan kept_;
  mutable std::shared_ptr<const SortedBins> cached_for_;
  mutable Communicator cached_layout_;
  mutable std::int64_t cached_first_ = -1;
};

}  // namespace

at::IntArrayRef DispatchPlan::host_rows() {
  if (rows.empty() && counts.defined()) {
    const auto host = counts.cpu();
    rows.assign(host.const_data_ptr<std::int64_t>(), host.const_data_ptr<std::int64_t>() + host.numel());
  }
  return rows;
}

std::shared_ptr<const Dispatcher> make_dispatcher(DispatchKind kind, const Communicator& ranks,
                                                  CapacityOptions capacity) {
  switch (kind) {
    case DispatchKind::all_gather:
      return moe::all_gather_dispatcher(ranks);
    case DispatchKind::capacity:
      return std::make_shared<CapacityExchange>(ranks, capacity);
    case DispatchKind::equal:
      return std::make_shared<EqualExchange>(ranks);
    case DispatchKind::padded:
      if (ranks) return std::make_shared<PaddedExchange>(ranks);
      [[fallthrough]];
    case DispatchKind::all_to_all:
      return std::make_shared<RowExchange>(ranks, ranks ? "AllToAll" : "Local");
  }
  TORCH_CHECK_VALUE(false, "make_dispatcher: expected a DispatchKind, got ", static_cast<int>(kind));
}

}  // namespace dtensor
