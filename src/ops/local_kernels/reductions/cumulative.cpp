// Cumulative sums and products along a sharded dimension. Each rank scans its own segments, totals are gathered, and
// the totals of preceding segments are combined into each segment. Floating-point products run sequentially over the
// segments.
#include <ATen/AccumulateType.h>

#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

enum class Scan { sum, product, logsumexp };

struct Part {
  std::int64_t offset;
  at::Tensor total;
};

at::Tensor scan_local(const at::Tensor& x, std::int64_t dim, Scan kind, at::ScalarType type) {
  // Integers stay unconverted, so that ATen raises its error for them.
  if (kind == Scan::logsumexp)
    return at::logcumsumexp(c10::isIntegralType(x.scalar_type(), true) ? x : x.to(type), dim);
  return kind == Scan::sum ? at::cumsum(x, dim, type) : at::cumprod(x, dim, type);
}

at::Tensor combine(const at::Tensor& a, const at::Tensor& b, Scan kind) {
  if (kind == Scan::logsumexp) return at::logaddexp(a, b);
  return kind == Scan::sum ? a + b : a * b;
}

at::Tensor last(const at::Tensor& scanned, std::int64_t dim) { return scanned.select(dim, scanned.size(dim) - 1); }

std::vector<at::Tensor> scan_segments(const at::Tensor& x, std::int64_t dim, const Segments& segments, Scan kind,
                                      at::ScalarType type) {
  std::vector<at::Tensor> scanned;
  std::int64_t begin = 0;
  for (const auto& s : segments) {
    scanned.push_back(scan_local(x.narrow(dim, begin, s.length), dim, kind, type));
    begin += s.length;
  }
  return scanned;
}

// A non-empty segment: its global offset, its owner and its index among the owner's segments.
struct Turn {
  std::int64_t offset;
  int member;
  std::size_t segment;
};

std::vector<Turn> turns_of(const std::vector<Segments>& segments) {
  std::vector<Turn> turns;
  for (std::size_t m = 0; m < segments.size(); ++m) {
    for (std::size_t i = 0; i < segments[m].size(); ++i) {
      if (segments[m][i].length > 0) turns.push_back({segments[m][i].offset, static_cast<int>(m), i});
    }
  }
  std::sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) { return a.offset < b.offset; });
  return turns;
}

// Totals of all non-empty segments of all members, sorted by offset.
std::vector<Part> gather_totals(const Communicator& comm, const std::vector<at::Tensor>& scanned, std::int64_t dim,
                                const std::vector<Segments>& segments) {
  const at::Tensor like = at::sum(scanned.front(), dim, false, scanned.front().scalar_type());
  std::vector<at::Tensor> totals, received;
  for (const auto& s : scanned) totals.push_back(s.size(dim) == 0 ? like : last(s, dim));
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes.insert(sizes.begin(), 0);
  for (const auto& theirs : segments) {
    sizes[0] = static_cast<std::int64_t>(theirs.size());
    received.push_back(at::empty(sizes, like.options()));
  }
  comm.all_gather(received, at::stack(totals)).wait();
  std::vector<Part> parts;
  for (const Turn& turn : turns_of(segments)) {
    const auto member = static_cast<std::size_t>(turn.member);
    parts.push_back({turn.offset, received[member][static_cast<std::int64_t>(turn.segment)]});
  }
  return parts;
}

at::Tensor add_before(const at::Tensor& scanned, std::int64_t dim, std::int64_t offset, const std::vector<Part>& parts,
                      Scan kind) {
  at::Tensor before;
  for (const auto& part : parts) {
    if (part.offset >= offset) break;
    before = before.defined() ? combine(before, part.total, kind) : part.total;
  }
  return before.defined() ? combine(scanned, before.unsqueeze(dim), kind) : scanned;
}

// The cumulative products of a segment, starting from the product of all elements before it.
at::Tensor products_after(const at::Tensor& before, const at::Tensor& x, std::int64_t dim) {
  if (!before.defined()) return at::cumprod(x, dim);
  return at::cumprod(at::cat({before.unsqueeze(dim), x}, dim), dim).narrow(dim, 1, x.size(dim));
}

// Computes cumulative products segment by segment, each from the product of all elements before it. Overflow and
// underflow then occur where they occur on one device. A segment's own product may overflow where the preceding product
// is zero.
at::Tensor products_in_turn(const Communicator& comm, const at::Tensor& x, std::int64_t dim, const Segments& own,
                            const std::vector<Segments>& segments) {
  std::vector<at::Tensor> found;
  std::int64_t begin = 0;
  for (const auto& s : own) found.push_back(x.narrow(dim, std::exchange(begin, begin + s.length), s.length));
  at::Tensor before;
  const auto turns = turns_of(segments);
  for (const Turn& turn : turns) {
    const bool mine = turn.member == comm.rank();
    if (mine) found[turn.segment] = products_after(before, found[turn.segment], dim);
    if (&turn == &turns.back()) break;
    auto total = mine ? last(found[turn.segment], dim).contiguous() : at::sum(x.narrow(dim, 0, 0), dim);
    comm.broadcast(total, turn.member).wait();
    before = std::move(total);
  }
  return found.size() == 1 ? found.front() : at::cat(found, dim);
}

template <Scan kind>
void scan(LocalCall& call) {
  const LocalArgs args(call);
  const auto* spec = args.spec("self");
  const auto x = args.tensor("self");
  const auto out = call.outputs[0]->dtype, type = accumulate_type(out);
  const std::int64_t dim = args.dim();
  const AxisMask axes = shard_axes(spec, dim);
  if (axes == 0) return set_results(call, {scan_local(x, dim, kind, type).to(out)});
  const auto& comm = call.mesh.communicator(axes);
  const auto own = own_segments(spec, dim, spec->sizes[dim]);
  const auto segments = segments_of_ranks(*spec, dim, axes);
  if (kind == Scan::product && !c10::isIntegralType(type, true)) {
    const auto in_turn = x.to(at::toAccumulateType(out, x.is_cuda()));  // the accumulation dtype of ATen's kernels
    return set_results(call, {products_in_turn(comm, in_turn, dim, own, segments).to(out)});
  }
  auto scanned = scan_segments(x, dim, own, kind, type);
  const auto parts = gather_totals(comm, scanned, dim, segments);
  for (std::size_t i = 0; i < own.size(); ++i) scanned[i] = add_before(scanned[i], dim, own[i].offset, parts, kind);
  set_results(call, {(scanned.size() == 1 ? scanned.front() : at::cat(scanned, dim)).to(out)});
}

}  // namespace

void add_scan_kernels(LocalKernels& kernels) {
  kernels.emplace("cumsum_sharded", scan<Scan::sum>);
  kernels.emplace("cumprod_sharded", scan<Scan::product>);
  kernels.emplace("logcumsumexp_sharded", scan<Scan::logsumexp>);
}

}  // namespace dtensor
