// Rows of slices in the parts of ranks.
#include "redistribute/regions/shard_rows.h"

#include <ATen/ATen.h>
#include <c10/util/irange.h>

#include <algorithm>

namespace dtensor {
namespace {

// Axes of more than one rank whose placement satisfies `test`; none for a null spec.
template <class Test>
AxisMask axes_of(const TensorSpec* spec, Test test) {
  if (spec == nullptr) return 0;
  return spec->mesh->nontrivial_axes &
         axes_where(spec->placements.size(), [&](std::size_t a) { return test(spec->placements[a]); });
}

}  // namespace

AxisMask shard_axes(const TensorSpec* spec, at::IntArrayRef dims) {
  return axes_of(spec, [&](const Placement& p) {
    return p.is_shard() && std::find(dims.begin(), dims.end(), p.dim()) != dims.end();
  });
}

AxisMask shard_axes(const TensorSpec* spec) {
  return axes_of(spec, [](const Placement& p) { return p.is_shard(); });
}

std::vector<Segments> segments_of_ranks(const TensorSpec& spec, std::int64_t dim, AxisMask axes) {
  return segments_of_ranks(*spec.mesh, spec.sizes[static_cast<std::size_t>(dim)], dim, spec.placements, axes);
}

void append_range(Segments& segments, const Segment& range) {
  if (range.length == 0) return;
  if (segments.empty() || range.offset > segments.back().offset + segments.back().length) {
    segments.push_back(range);
  } else {
    segments.back().length = std::max(segments.back().length, range.offset + range.length - segments.back().offset);
  }
}

Segment Slice::within(const Segment& full) const {
  const auto first = [&](std::int64_t row) {
    return std::clamp((std::max(row - start, std::int64_t{0}) + step - 1) / step, std::int64_t{0}, length);
  };
  const auto begin = first(full.offset);
  return {begin, first(full.offset + full.length) - begin};
}

std::vector<Segments> Slice::within(const std::vector<Segments>& full) const {
  std::vector<Segments> all(full.size());
  for (const auto r : c10::irange(full.size())) {
    for (const Segment& s : full[r]) append_range(all[r], within(s));
  }
  return all;
}

std::vector<at::Tensor> Slice::views_of(const at::Tensor& local, const Segments& full) const {
  std::vector<at::Tensor> views;
  std::int64_t before = 0;
  for (const Segment& s : full) {
    const Segment rows = within(s);
    const auto first = before + start + rows.offset * step - s.offset;
    if (rows.length > 0) views.push_back(local.slice(dim, first, before + s.length, step).narrow(dim, 0, rows.length));
    before += s.length;
  }
  return views;
}

at::Tensor Slice::rows_of(const at::Tensor& local, const Segments& full) const {
  const auto views = views_of(local, full);
  if (views.empty()) return local.narrow(dim, 0, 0);
  return views.size() == 1 ? views[0] : at::cat(views, dim);
}

}  // namespace dtensor
