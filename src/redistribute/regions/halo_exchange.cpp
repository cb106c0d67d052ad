// Computes the rows that windows read, and exchanges them.
#include "redistribute/regions/halo_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "internal/contiguous_ranges.h"
#include "redistribute/regions/part_views.h"

namespace dtensor {
namespace {

struct Range {
  std::int64_t begin, end;
};

std::int64_t rounded_down(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// The range of operand rows that the windows of these result rows span, including padding.
Range span_of(const Segment& rows, const Window& w) {
  if (w.transposed) {
    const std::int64_t last = rows.offset + rows.length - 1 + w.before;
    return {rounded_down(rows.offset + w.before - w.length, w.stride) + 1, rounded_down(last, w.stride) + 1};
  }
  return {rows.offset * w.stride - w.before, (rows.offset + rows.length - 1) * w.stride - w.before + w.length};
}

Range clipped(Range range, std::int64_t n) {
  const std::int64_t begin = std::clamp(range.begin, std::int64_t{0}, n);
  return {begin, std::clamp(range.end, begin, n)};
}

Segments mirrored(const Segments& rows, std::int64_t n) {
  Segments all;
  for (auto s = rows.rbegin(); s != rows.rend(); ++s) {
    if (s->length > 0) all.push_back({n - s->offset - s->length, s->length});
  }
  return all;
}

// The operand rows that these result rows read, in ascending order without overlaps.
Segments indexed_rows(const Segments& rows, const Window& window, std::int64_t n) {
  if (window.mirrored) return mirrored(rows, n);
  Segments all;
  for (const Segment& s : rows) {
    if (s.length == 0) continue;
    const Range range = clipped(span_of(s, window), n);
    if (range.begin == range.end) continue;
    append_range(all, {range.begin, range.end - range.begin});
  }
  return all;
}

std::vector<HaloExchange::Piece> pieces_of(const Segments& rows, const Segments& fetched, const Window& window,
                                           std::int64_t n) {
  std::vector<HaloExchange::Piece> pieces;
  std::int64_t first = 0;
  for (const Segment& s : rows) {
    if (s.length == 0) continue;
    const Range span = span_of(s, window), inside = clipped(span, n);
    // A span that lies entirely in the padding counts as padding after the rows.
    const std::int64_t length = inside.end - inside.begin, before = length > 0 ? inside.begin - span.begin : 0;
    const std::int64_t after = span.end - span.begin - length - before;
    pieces.push_back({first, s.length, length > 0 ? concatenated_index(fetched, inside.begin) : 0, length,
                      window.transposed ? 0 : before, window.transposed ? 0 : after, s.offset, inside.begin});
    first += s.length;
  }
  return pieces;
}

}  // namespace

Segment window_span(const Segment& rows, const Window& window) {
  const Range range = span_of(rows, window);
  return {range.begin, range.end - range.begin};
}

HaloExchange::HaloExchange(const Communicator& members, std::int64_t dim, std::vector<Segments> held,
                           std::vector<Segments> fetched)
    : members_(members), dim_(dim), held_(std::move(held)), fetched_(std::move(fetched)) {
  find_messages();
}

HaloExchange::HaloExchange(const Communicator& members, std::int64_t dim, std::vector<Segments> held,
                           const std::vector<Segments>& rows, const Window& window, std::int64_t n)
    : members_(members), dim_(dim), held_(std::move(held)) {
  for (const Segments& of_member : rows) fetched_.push_back(indexed_rows(of_member, window, n));
  if (!window.mirrored) pieces_ = pieces_of(rows[static_cast<std::size_t>(members_.rank())], fetched(), window, n);
  find_messages();
}

HaloExchange::HaloExchange(const MeshImpl& mesh, const TensorSpec& operand, const TensorSpec& result, std::int64_t dim,
                           const Window& window)
    : HaloExchange(mesh.communicator(shard_axes(&operand, dim)), dim,
                   segments_of_ranks(operand, dim, shard_axes(&operand, dim)),
                   segments_of_ranks(result, dim, shard_axes(&operand, dim)), window,
                   operand.sizes[static_cast<std::size_t>(dim)]) {}

void HaloExchange::find_messages() {
  for (std::size_t m = 0; m < held_.size(); ++m) {
    sends_ |= total_length(intersection(held_[m], fetched_[m])) < total_length(fetched_[m]);
  }
}

const Segments& HaloExchange::fetched() const { return fetched_[static_cast<std::size_t>(members_.rank())]; }

std::vector<Region> HaloExchange::regions(const at::Tensor& local, const std::vector<Segments>& rows) const {
  std::vector<Region> regions(rows.size());
  for (std::size_t m = 0; m < rows.size(); ++m) {
    for (const auto size : local.sizes()) regions[m].dims.push_back({{0, size}});
    regions[m].dims[static_cast<std::size_t>(dim_)] = rows[m];
  }
  return regions;
}

TransferPlan HaloExchange::plan(const at::Tensor& local, const std::vector<Segments>& from,
                                const std::vector<Segments>& to) const {
  const auto me = static_cast<std::size_t>(members_.rank());
  const auto held = regions(local, from), wanted = regions(local, to);
  if (sends_) return {overlaps(held[me], wanted), overlaps(wanted[me], held), held[me], wanted[me]};
  const Transfer own{members_.rank(), intersection(held[me], wanted[me])};
  return {{own}, {own}, held[me], wanted[me]};
}

void HaloExchange::run(const RegionExchange& exchange) const {
  BucketedAllToAll parts;
  exchange.join(parts, parts.bucket(members_, exchange.result().scalar_type(), sends_));
  parts.run();
}

at::Tensor HaloExchange::fetch_halo(const at::Tensor& local, at::ArrayRef<Margin> margins,
                                    const at::Scalar& value) const {
  const auto me = static_cast<std::size_t>(members_.rank());
  const auto is_none = [](const Margin& m) { return m.before == 0 && m.after == 0; };
  if (!sends_ && fetched_[me] == held_[me] && std::all_of(margins.begin(), margins.end(), is_none)) return local;
  TransferPlan transfers = plan(local, held_, fetched_);
  auto sizes = transfers.wanted.sizes();
  for (const Margin& m : margins) sizes[static_cast<std::size_t>(m.dim)] += m.before + m.after;
  const at::Tensor padded = at::empty(sizes, local.options());
  at::Tensor rows = padded;
  for (const Margin& m : margins) {
    const auto end = rows.size(m.dim) - m.after;
    if (m.before > 0) rows.narrow(m.dim, 0, m.before).fill_(value);
    if (m.after > 0) rows.narrow(m.dim, end, m.after).fill_(value);
    rows = rows.narrow(m.dim, m.before, end - m.before);
  }
  const RegionExchange exchange(std::move(transfers), local, rows);
  run(exchange);
  exchange.finish();
  return padded;
}

at::Tensor HaloExchange::reduce_halo(const at::Tensor& shares) const {
  TransferPlan transfers = plan(shares, fetched_, held_);
  for (auto* list : {&transfers.sends, &transfers.receives}) {
    std::erase_if(*list, [&](const Transfer& t) { return t.peer == members_.rank(); });
  }
  const Region own = intersection(transfers.held, transfers.wanted);
  const at::Tensor own_shares = read_part(shares, transfers.held, own);
  // Rows that this rank does not read itself start at 0.
  const bool reads_all = own.sizes() == transfers.wanted.sizes();
  const at::Tensor sum = reads_all ? own_shares.contiguous() : at::zeros(transfers.wanted.sizes(), shares.options());
  if (!reads_all) write_part(sum, transfers.wanted, own, own_shares);
  const RegionExchange exchange(std::move(transfers), shares, sum, RegionExchange::Arrival::add);
  run(exchange);
  return exchange.finish();
}

}  // namespace dtensor
