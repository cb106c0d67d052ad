// sort and topk along a sharded dimension.
#include <algorithm>
#include <limits>

#include "ops/local_kernels/local_args.h"
#include "redistribute/execute.h"
#include "redistribute/regions/part_views.h"

namespace dtensor {
namespace {

// sort of a sharded 1-d tensor. Each rank sorts its shard. The ranks compute which elements of each shard belong to
// which rank's range of the result, exchange these elements, and merge them. The result is sharded as the operand; it
// is not gathered. Elements are compared by 64-bit keys in the operator's order (NaN last, -0 equal to 0, reversed if
// descending), and equal keys by global index, so the sort is stable.

// Tensors of up to kSmall elements are gathered and sorted on every rank, since the exact bounds take about 20
// collectives.
constexpr std::int64_t kSmall = 1 << 13;
constexpr std::int64_t kPivots = 15;  // compared at once for each bound

using Counts = std::vector<std::int64_t>;

struct SortRequest {
  std::int64_t dim;
  bool descending;
};

// Integers whose order is that of the floats: the magnitude bits of negative numbers are inverted.
at::Tensor float_bits(const at::Tensor& values) {
  const bool wide = values.scalar_type() == at::kDouble;
  const auto bits = (values + 0.0).contiguous().view(wide ? at::kLong : at::kInt);  // + 0 turns -0 into 0
  const auto magnitude = wide ? at::Scalar(std::numeric_limits<std::int64_t>::max())
                              : at::Scalar(std::int64_t{std::numeric_limits<std::int32_t>::max()});
  const auto ordered = at::where(bits.lt(0), bits.bitwise_xor(magnitude), bits).to(at::kLong);
  return ordered.masked_fill_(values.isnan(), std::numeric_limits<std::int64_t>::max());
}

at::Tensor keys_of(const at::Tensor& values, bool descending) {
  const bool half = values.scalar_type() == at::kHalf || values.scalar_type() == at::kBFloat16;
  const auto keys =
      values.is_floating_point() ? float_bits(half ? values.to(at::kFloat) : values) : values.to(at::kLong);
  return (descending ? keys.bitwise_not() : keys).to(at::kCPU).contiguous();
}

// This rank's sorted keys.
struct Run {
  const std::int64_t *begin, *end;
  explicit Run(const at::Tensor& keys) : begin(keys.const_data_ptr<std::int64_t>()), end(begin + keys.numel()) {}
  std::int64_t below(std::int64_t key) const { return std::lower_bound(begin, end, key) - begin; }
  std::int64_t up_to(std::int64_t key) const { return std::upper_bound(begin, end, key) - begin; }
};

at::Tensor on_device(const Counts& values, const at::Tensor& like) {
  return at::tensor(values, at::kLong).to(like.device());
}

Counts agreed(const Communicator& comm, const Counts& mine, ReduceOp op, const at::Tensor& like) {
  auto all = on_device(mine, like);
  comm.all_reduce(all, op).wait();
  const auto host = all.to(at::kCPU);
  return {host.const_data_ptr<std::int64_t>(), host.const_data_ptr<std::int64_t>() + host.numel()};
}

// The inclusive range that contains the key of the element at a global position.
struct Range {
  std::int64_t low, high;
  std::int64_t pivot(std::int64_t i) const {  // 0 <= i < kPivots; without overflow
    const auto span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
    const auto step = span / (kPivots + 1), rest = span % (kPivots + 1);
    const auto k = static_cast<std::uint64_t>(i + 1);
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + step * k + rest * k / (kPivots + 1));
  }
};

// Narrows the range by the number of elements up to each pivot. Returns false once the key is determined.
bool narrow(const std::int64_t* counts, std::int64_t position, Range& range) {
  const Range before = range;
  for (std::int64_t i = 0; i < kPivots && range.low <= before.pivot(i); ++i) {
    if (counts[i] >= position) {
      range.high = before.pivot(i);
      break;
    }
    range.low = before.pivot(i) + 1;
  }
  return range.low < range.high;
}

// For each position: the smallest key such that at least `position` elements of all ranks have this key or a smaller
// one.
Counts bounding_keys(const Communicator& comm, const Run& run, const Counts& positions, const at::Tensor& like) {
  const bool empty = run.begin == run.end;
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const auto ends = agreed(comm, {empty ? kMost : *run.begin, empty ? kMost : ~run.end[-1]}, ReduceOp::min, like);
  std::vector<Range> ranges(positions.size(), Range{ends[0], ~ends[1]});
  for (bool open = !ranges.empty() && ends[0] < ~ends[1]; open;) {
    Counts counts;
    for (const auto& range : ranges) {
      for (std::int64_t i = 0; i < kPivots; ++i) counts.push_back(run.up_to(range.pivot(i)));
    }
    counts = agreed(comm, counts, ReduceOp::sum, like);
    open = false;
    for (std::size_t j = 0; j < ranges.size(); ++j) {
      open = narrow(counts.data() + j * kPivots, positions[j], ranges[j]) || open;
    }
  }
  Counts keys;
  for (const auto& range : ranges) keys.push_back(range.low);
  return keys;
}

// splits[r][m]: the number of member r's elements before the range of member m.
std::vector<Counts> exact_splits(const Communicator& comm, const Run& run, const Counts& lengths,
                                 const at::Tensor& like) {
  const std::size_t n = lengths.size();
  Counts positions(n - 1);
  for (std::size_t j = 0, at = 0; j + 1 < n; ++j) positions[j] = static_cast<std::int64_t>(at += lengths[j]);
  const Counts keys = bounding_keys(comm, run, positions, like);
  Counts mine;
  for (const auto key : keys) mine.insert(mine.end(), {run.below(key), run.up_to(key)});
  std::vector<at::Tensor> gathered;
  for (std::size_t r = 0; r < n; ++r) gathered.push_back(on_device(Counts(mine.size()), like));
  comm.all_gather(gathered, on_device(mine, like)).wait();
  std::vector<Counts> splits(n, Counts(n + 1));
  for (std::size_t r = 0; r < n; ++r) {
    gathered[r] = gathered[r].to(at::kCPU);
    splits[r][n] = lengths[r];
  }
  for (std::size_t j = 0; j + 1 < n; ++j) {
    std::int64_t wanted = positions[j];
    for (const auto& g : gathered) wanted -= g.const_data_ptr<std::int64_t>()[2 * j];
    for (std::size_t r = 0; r < n; ++r) {  // equal keys in rank order, which is index order
      const auto* counts = gathered[r].const_data_ptr<std::int64_t>() + 2 * j;
      const auto equals = std::min(wanted, counts[1] - counts[0]);
      splits[r][j + 1] = counts[0] + equals;
      wanted -= equals;
    }
  }
  return splits;
}

std::vector<at::Tensor> exchange(const Communicator& comm, const at::Tensor& mine, const std::vector<Counts>& splits) {
  const auto me = static_cast<std::size_t>(comm.rank());
  std::vector<at::Tensor> give, take;
  for (std::size_t m = 0; m < splits.size(); ++m) {
    give.push_back(mine.narrow(0, splits[me][m], splits[me][m + 1] - splits[me][m]));
    take.push_back(at::empty({splits[m][me + 1] - splits[m][me]}, mine.options()));
  }
  comm.all_to_all(take, give).wait();
  return take;
}

// The permutation that merges consecutive sorted runs. Among equal keys, earlier runs come first.
at::Tensor merge(const at::Tensor& keys, std::vector<std::int64_t> ends) {
  auto order = at::arange(keys.numel(), at::kLong), scratch = at::empty_like(order);
  const auto* key = keys.const_data_ptr<std::int64_t>();
  const auto less = [key](std::int64_t a, std::int64_t b) { return key[a] < key[b]; };
  while (ends.size() > 1) {
    const auto* from = order.const_data_ptr<std::int64_t>();
    auto* to = scratch.mutable_data_ptr<std::int64_t>();
    std::vector<std::int64_t> next;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < ends.size(); i += 2) {
      const auto middle = ends[i], end = i + 1 < ends.size() ? ends[i + 1] : ends[i];
      std::merge(from + begin, from + middle, from + middle, from + end, to + begin, less);
      next.push_back(begin = end);
    }
    ends = std::move(next);
    std::swap(order, scratch);
  }
  return order;
}

std::vector<at::Tensor> sorted_regular(const at::Tensor& x, const SortRequest& r) {
  const auto [values, indices] = at::sort(x, /*stable=*/true, r.dim, r.descending);
  return {values, indices};
}

std::vector<at::Tensor> sort_full(const TensorSpec& spec, const at::Tensor& own, const SortRequest& r) {
  auto placements = spec.placements;
  for (auto& p : placements) p = Replicate();
  auto results = sorted_regular(redistribute_local(own, spec, placements), r);
  for (auto& result : results)
    result = select_segments(result, r.dim, own_segments(&spec, r.dim, spec.sizes[r.dim])).contiguous();
  return results;
}

// Whether the members' shards are contiguous ranges in rank order.
bool in_order(const std::vector<Segments>& members) {
  std::int64_t next = 0;
  for (const auto& segments : members) {
    if (segments.size() > 1) return false;
    if (total_length(segments) > 0 && segments[0].offset != next) return false;
    next += total_length(segments);
  }
  return true;
}

std::vector<at::Tensor> sort_split(const Communicator& comm, const TensorSpec& spec, const at::Tensor& x,
                                   const SortRequest& r, const std::vector<Segments>& members) {
  const auto parts = sorted_regular(x.reshape({-1}), {0, r.descending});
  const auto indices = to_global(parts[1], own_segments(&spec, r.dim, spec.sizes[r.dim]));
  Counts lengths, ends;
  for (const auto& m : members) lengths.push_back(total_length(m));
  const auto keys = keys_of(parts[0], r.descending);
  const auto splits = exact_splits(comm, Run(keys), lengths, x);
  const auto values = exchange(comm, parts[0], splits), places = exchange(comm, indices, splits);
  for (const auto& v : values) ends.push_back((ends.empty() ? 0 : ends.back()) + v.numel());
  const auto all = at::cat(values);
  const auto order = merge(keys_of(all, r.descending), std::move(ends)).to(x.device());
  return {all.index_select(0, order).view(x.sizes()), at::cat(places).index_select(0, order).view(x.sizes())};
}

void sort(LocalCall& call) {
  const LocalArgs args(call);
  const auto x = args.tensor("self");
  const auto* spec = args.spec("self");
  const SortRequest r{args.dim(), args.flag("descending")};
  const AxisMask axes = shard_axes(spec, r.dim);
  if (axes == 0) return set_results(call, sorted_regular(x, r));
  const auto& comm = call.mesh.communicator(axes);
  const auto members = segments_of_ranks(*spec, r.dim, axes);
  const bool full = spec->sizes[r.dim] <= kSmall || !in_order(members) || x.scalar_type() == at::kUInt64;
  set_results(call, full ? sort_full(*spec, x, r) : sort_split(comm, *spec, x, r, members));
}

// topk along a sharded dimension. Ranks gather the best k values of each shard with their global indices, and select
// the best k of these candidates. The full dimension is gathered only for ties on the CPU, where the choice among equal
// values depends on the full row.

struct TopkRequest {
  std::int64_t k, dim;
  bool largest, sorted;
};

TopkRequest request_of(const LocalArgs& args) {
  return {args.integer("k"), args.dim(), args.flag("largest"), args.flag("sorted")};
}

// Gathers the candidates without padding: the number of candidates may differ between members.
at::Tensor gather_offers(const Communicator& comm, const at::Tensor& own, std::int64_t wanted, std::int64_t dim,
                         const std::vector<Segments>& members) {
  std::vector<at::Tensor> received;
  auto sizes = own.sizes().vec();
  for (const auto& theirs : members) {
    sizes[dim] = std::min(wanted, total_length(theirs));
    received.push_back(at::empty(sizes, own.options()));
  }
  comm.all_gather(received, own.contiguous()).wait();
  return at::cat(received, dim);
}

// Whether sorted values contain equal ones. NaN equals NaN.
bool has_ties(const at::Tensor& sorted, std::int64_t dim) {
  const auto n = sorted.size(dim) - 1;
  if (n <= 0) return false;
  const auto a = sorted.narrow(dim, 0, n), b = sorted.narrow(dim, 1, n);
  auto same = a.eq(b);
  if (sorted.is_floating_point()) same.logical_or_(a.isnan().logical_and_(b.isnan()));
  return same.any().item<bool>();
}

std::vector<at::Tensor> topk_full(const TensorSpec& spec, const at::Tensor& own, const TopkRequest& r) {
  auto placements = spec.placements;
  for (auto& p : placements) {
    if (p.is_shard() && p.dim() == r.dim) p = Replicate();
  }
  const auto full = redistribute_local(own, spec, placements);
  const auto [values, indices] = at::topk(full, r.k, r.dim, r.largest, r.sorted);
  return {values, indices};
}

void topk(LocalCall& call) {
  const LocalArgs args(call);
  const TopkRequest r = request_of(args);
  const auto x = args.tensor("self");
  const auto* spec = args.spec("self");
  const AxisMask axes = shard_axes(spec, r.dim);
  if (axes == 0) {
    const auto [values, indices] = at::topk(x, r.k, r.dim, r.largest, r.sorted);
    return set_results(call, {values, indices});
  }
  // One more than k, to detect a tie at the boundary.
  const std::int64_t wanted = std::min(r.k + 1, spec->sizes[r.dim]);
  auto [values, indices] = at::topk(x, std::min(wanted, x.size(r.dim)), r.dim, r.largest, true);
  indices = to_global(indices, own_segments(spec, r.dim, spec->sizes[r.dim]));
  const auto& comm = call.mesh.communicator(axes);
  const auto members = segments_of_ranks(*spec, r.dim, axes);
  values = gather_offers(comm, values, wanted, r.dim, members);
  indices = gather_offers(comm, indices, wanted, r.dim, members);
  auto [best, where] = at::topk(values, wanted, r.dim, r.largest, true);
  if (x.is_cpu() && has_ties(best, r.dim)) return set_results(call, topk_full(*spec, x, r));
  best = best.narrow(r.dim, 0, r.k).contiguous();
  set_results(call, {best, indices.gather(r.dim, where.narrow(r.dim, 0, r.k))});
}

}  // namespace

void add_sort_kernels(LocalKernels& kernels) {
  kernels.emplace("sort_sharded", sort);
  kernels.emplace("topk_sharded", topk);
}

}  // namespace dtensor
