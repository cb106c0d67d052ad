// Enumerates the strategies of the axes that shard the sequence, estimates their costs and selects the cheapest.
#include "attention/strategy.h"

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <bit>

#include "internal/contiguous_ranges.h"
#include "placement/shard_map.h"
#include "redistribute/plan/cost.h"
#include "redistribute/plan/plan.h"
#include "redistribute/plan/split_layout.h"

namespace dtensor::attention_impl {
namespace {

constexpr std::int64_t kBatch = 0, kHeads = 1, kRows = 2;
constexpr double kOperationsPerSecond = 5e10;  // per rank

bool splits(const Placement& p, std::int64_t dim) { return p.is_shard(dim) && !p.is_storage(); }

// Whether each rank has the key head for each of its query heads.
bool heads_are_compatible(const Operands& o, const Placements& q, const Placements& kv) {
  const auto heads = o.q->sizes[kHeads], groups = o.k->sizes[kHeads];
  if (groups == 0) return true;
  const auto& layout = o.q->mesh->layout;
  for (std::int64_t i = 0; i < layout.size(); ++i) {
    const auto at = coordinate_of_index(layout, i);
    const auto held = shard_segments(groups, kHeads, kv, layout.shape, at);
    for (const Segment& s : shard_segments(heads, kHeads, q, layout.shape, at)) {
      for (std::int64_t h = s.offset; h < s.offset + s.length; ++h) {
        const auto group = h / (heads / groups);
        if (intersection_size(held, {Segment{group, 1}}) == 0) return false;
      }
    }
  }
  return true;
}

// The placement of the first operand that shards `dim` on the axis.
const Placement* split_of(const Operands& o, std::size_t axis, std::int64_t dim) {
  for (const auto* spec : {o.q.get(), o.k.get(), o.v.get()}) {
    if (splits(spec->placements[axis], dim)) return &spec->placements[axis];
  }
  return nullptr;
}

// A placement for both queries and keys: listed sizes fit only one dimension size.
Placement fitting(const Placement& p, const Operands& o, std::int64_t dim) {
  return fits_size(p, o.q->sizes[dim]) && fits_size(p, o.k->sizes[dim]) ? p : Shard(dim);
}

// A tensor can have only one shard that lists sizes per dimension, so a second one is replaced by Shard.
Placement beside(const Placements& others, const Placement& p) {
  const auto same = [&](const Placement& other) { return lists_sizes(other) && other.is_shard(p.dim()); };
  return lists_sizes(p) && std::any_of(others.begin(), others.end(), same) ? Shard(p.dim()) : p;
}

void split_heads(const Operands& o, std::size_t axis, AttentionLayout& layout) {
  const Placement* own = splits(o.q->placements[axis], kHeads) ? &o.q->placements[axis] : nullptr;
  layout.q[axis] = own != nullptr ? beside(layout.q, *own) : Shard(kHeads);
  if (const auto* split = split_of(o, axis, kHeads); split != nullptr) {
    layout.kv[axis] = beside(layout.kv, fitting(*split, o, kHeads));
  }
  if (!layout.kv[axis].is_shard()) layout.kv[axis] = Shard(kHeads);
  if (!heads_are_compatible(o, layout.q, layout.kv)) layout.kv[axis] = Shard(kHeads);
  if (!heads_are_compatible(o, layout.q, layout.kv)) layout.kv[axis] = Replicate();
}

void split_rows(const Operands& o, std::size_t axis, AttentionLayout& layout) {
  const auto& q = o.q->placements[axis];
  const auto& k = o.k->placements[axis];
  const auto& v = o.v->placements[axis];
  const Placement known = *split_of(o, axis, kRows);
  layout.q[axis] = beside(layout.q, splits(q, kRows) ? q : fitting(known, o, kRows));
  if (splits(k, kRows)) {
    layout.kv[axis] = beside(layout.kv, k);
  } else if (splits(v, kRows)) {
    layout.kv[axis] = beside(layout.kv, v);
  }  // else all ranks already have all keys
}

// Axes that do not shard the sequence come first, because a rank's heads determine the placement of keys.
AttentionLayout layout_of(const Operands& o, AxisMask sequence, AxisMask gather, AxisMask ulysses, AxisMask merge) {
  const std::size_t axes = o.q->placements.size();
  AttentionLayout layout{Placements(axes), Placements(axes), {},   {}, sequence & ~gather & ~ulysses & ~merge,
                         gather,           ulysses,          merge};
  for (std::size_t a = 0; a < axes; ++a) {
    if (has_axis(sequence & ~ulysses, a)) continue;
    if (o.q->mesh->layout.shape[a] == 1) {
      if (o.q->placements[a].is_shard()) layout.q[a] = o.q->placements[a].as_storage(false);
      continue;
    }
    if (const auto* batch = has_axis(sequence, a) ? nullptr : split_of(o, a, kBatch); batch != nullptr) {
      layout.q[a] = layout.kv[a] = beside(layout.q, *batch);
    } else if (has_axis(ulysses, a) || split_of(o, a, kHeads) != nullptr) {
      split_heads(o, a, layout);
    }
  }
  for (std::size_t a = 0; a < axes; ++a) {
    if (has_axis(sequence & ~ulysses, a)) split_rows(o, a, layout);
    if (has_axis(merge, a)) layout.q[a] = Replicate();
  }
  layout.used = layout.kv;
  layout.result = layout.q;
  for (std::size_t a = 0; a < axes; ++a) {
    if (has_axis(gather, a)) layout.used[a] = Replicate();
    if (!splits(layout.kv[a], kRows)) layout.ring &= ~(AxisMask{1} << a);
    if (!has_axis(ulysses, a)) continue;
    const bool own = splits(o.q->placements[a], kRows);
    layout.result[a] = beside(layout.result, own ? o.q->placements[a] : fitting(*split_of(o, a, kRows), o, kRows));
  }
  return layout;
}

double bytes_of(const TensorSpec& spec, const Placements& placements) {
  const auto& mesh = *spec.mesh;
  const std::vector<std::int64_t> first(mesh.layout.shape.size());
  const auto local = local_sizes(spec.sizes, placements, mesh.layout.shape, first);
  return static_cast<double>(c10::multiply_integers(local) * static_cast<std::int64_t>(c10::elementSize(spec.dtype)));
}

// Maximum over ranks of the number of (query, key) pairs, summed over heads.
double most_pairs(const Operands& o, const Pattern& pattern, const AttentionLayout& layout) {
  const auto& mesh = o.q->mesh->layout;
  double most = 0;
  for (std::int64_t i = 0; i < mesh.size(); ++i) {
    const auto at = coordinate_of_index(mesh, i);
    Placements all = layout.used;
    for (std::size_t a = 0; a < all.size(); ++a) {
      if (has_axis(layout.ring, a)) all[a] = Replicate();
    }
    const auto tiles = tiles_of(shard_segments(o.q->sizes[kRows], kRows, layout.q, mesh.shape, at),
                                shard_segments(o.k->sizes[kRows], kRows, all, mesh.shape, at), pattern);
    const auto heads = total_length(shard_segments(o.q->sizes[kHeads], kHeads, layout.q, mesh.shape, at));
    const auto batch = total_length(shard_segments(o.q->sizes[kBatch], kBatch, layout.q, mesh.shape, at));
    most = std::max(most, count_pairs(tiles) * static_cast<double>(heads * batch));
  }
  return most;
}

struct Cost {
  double moving = 0, computing = 0, total = 0;  // seconds
};

// Includes the redistribution of the result to the placements of the queries.
Cost cost_of(const Operands& o, const Pattern& pattern, const AttentionLayout& layout) {
  Cost cost;
  const auto features = static_cast<double>(o.q->sizes[3] + o.v->sizes[3]);
  cost.computing = 2 * features * most_pairs(o, pattern, layout) / kOperationsPerSecond;
  cost.moving =
      redistribute_cost(*o.q, layout.q) + redistribute_cost(*o.k, layout.kv) + redistribute_cost(*o.v, layout.kv);
  Placements summands = layout.q;
  for (std::size_t a = 0; a < summands.size(); ++a)
    summands[a] = has_axis(layout.merge, a) ? dtensor::Partial() : summands[a];
  cost.moving += redistribute_cost(*with_placements(*o.q, summands), layout.result);
  if (layout.gather != 0) {
    cost.moving += redistribute_cost(*with_placements(*o.k, layout.kv), layout.used) +
                   redistribute_cost(*with_placements(*o.v, layout.kv), layout.used);
  }
  cost.total = cost.moving + cost.computing;
  const auto ranks = static_cast<double>(ranks_along(o.q->mesh->layout.shape, layout.ring));
  if (ranks == 1) return cost;
  const double block = bytes_of(*o.k, layout.used) + bytes_of(*o.v, layout.used);
  const double turns = (ranks - 1) * (2 * kLatencySeconds + block / kBytesPerSecond);
  // The first block is computed while the next one is received, and so on.
  cost.total += std::max(turns - cost.computing * (ranks - 1) / ranks, 2 * kLatencySeconds * (ranks - 1));
  cost.moving += turns;
  return cost;
}

std::string names_of(const Operands& o, const AttentionLayout& layout, AxisMask sequence) {
  std::string text;
  const auto& names = o.q->mesh->layout.names;
  for (std::size_t a = 0; a < o.q->placements.size(); ++a) {
    if (!has_axis(sequence, a)) continue;
    if (!text.empty()) text += ", ";
    text += (names.empty() ? "axis " + std::to_string(a) : names[a]) + ": ";
    text += has_axis(layout.ulysses, a)  ? "ulysses"
            : has_axis(layout.gather, a) ? "gather"
            : has_axis(layout.ring, a)   ? "ring"
                                         : "local";
  }
  return text;
}

struct Candidate {
  AttentionLayout layout;
  Cost cost;
};

// What one axis does. AttentionStrategy contains the values that users can request for all axes; merge is selected by
// cost only. For equal costs, earlier values are preferred.
enum class Way : std::uint8_t { ring, ulysses, gather, merge };
constexpr std::size_t kWays = 4;

bool is_offered(Way way, const Operands& o, std::size_t axis, AttentionStrategy strategy) {
  // Whether keys are sharded but queries are not.
  const bool keys_alone = splits(o.k->placements[axis], kRows) && !splits(o.q->placements[axis], kRows);
  if (strategy == AttentionStrategy::automatic) return way != Way::merge || keys_alone;
  const auto asked = way == Way::ring      ? AttentionStrategy::ring
                     : way == Way::ulysses ? AttentionStrategy::ulysses
                                           : AttentionStrategy::gather;
  return way != Way::merge && strategy == asked;
}

// The assignment of ways to sequence axes with this number; nullopt if one of them is not available.
std::optional<AttentionLayout> layout_by_number(std::size_t number, const Operands& o, AttentionStrategy strategy,
                                                AxisMask sequence) {
  AxisMask of[kWays] = {};
  for (std::size_t a = 0; a < o.q->placements.size(); ++a) {
    if (!has_axis(sequence, a)) continue;
    const std::size_t way = number % kWays;
    number /= kWays;
    if (!is_offered(static_cast<Way>(way), o, a, strategy)) return std::nullopt;
    of[way] |= AxisMask{1} << a;
  }
  const auto axes = [&](Way way) { return of[static_cast<std::size_t>(way)]; };
  return layout_of(o, sequence, axes(Way::gather), axes(Way::ulysses), axes(Way::merge));
}

std::vector<Candidate> candidates_of(const Operands& o, const Pattern& pattern, AttentionStrategy strategy,
                                     AxisMask sequence) {
  std::size_t count = 1;
  for (std::size_t a = 0; a < o.q->placements.size(); ++a) count *= has_axis(sequence, a) ? kWays : 1;
  std::vector<Candidate> list;
  for (std::size_t number = 0; number < count; ++number) {
    auto layout = layout_by_number(number, o, strategy, sequence);
    if (!layout) continue;
    const Cost cost = cost_of(o, pattern, *layout);
    list.push_back({*std::move(layout), cost});
  }
  return list;
}

}  // namespace

AxisMask sequence_axes(const Operands& operands) {
  AxisMask axes = 0;
  for (std::size_t a = 0; a < operands.q->placements.size(); ++a) {
    if (operands.q->mesh->layout.shape[a] > 1 && split_of(operands, a, kRows) != nullptr) axes |= AxisMask{1} << a;
  }
  return axes;
}

AttentionLayout search_layout(const Operands& operands, const Pattern& pattern, AttentionStrategy strategy,
                              std::string* text) {
  const AxisMask sequence = sequence_axes(operands);
  auto list = candidates_of(operands, pattern, strategy, sequence);
  std::size_t best = 0;
  for (std::size_t i = 1; i < list.size(); ++i) {
    if (list[i].cost.total < list[best].cost.total * (1 - 1e-9)) best = i;
  }
  if (text != nullptr) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      *text += c10::str("  ", i == best ? "* " : "  ", names_of(operands, list[i].layout, sequence), ": ",
                        list[i].cost.total * 1e6, " us (moving ", list[i].cost.moving * 1e6, ", computing ",
                        list[i].cost.computing * 1e6, ")\n");
    }
  }
  return std::move(list[best].layout);
}

InputMoves moves_to_layout(const AttentionLayout& layout, const Operands& o) {
  InputMoves moves;
  const auto add = [&](const char* name, const TensorSpec& from, Placements to) {
    for (std::size_t a = 0; a < to.size(); ++a) {
      if (has_axis(layout.ulysses, a) && splits(from.placements[a], kRows)) to[a] = from.placements[a];
    }
    const auto bytes = plan_redistribute(from, to).bytes_moved;
    if (bytes == 0) return;
    moves.bytes += bytes;
    moves.operands.push_back({name, from.str(), std::move(to)});
  };
  add("q", *o.q, layout.q);
  add("k", *o.k, layout.kv);
  add("v", *o.v, layout.kv);
  return moves;
}

}  // namespace dtensor::attention_impl
