// The positions of a part's ranges in the local tensor.
#include "redistribute/regions/part_views.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "redistribute/result_buffers.h"

namespace dtensor {
namespace {

at::Tensor block(const at::Tensor& tensor, at::IntArrayRef offsets, at::IntArrayRef lengths) {
  std::int64_t storage_offset = tensor.storage_offset();
  for (std::size_t d = 0; d < offsets.size(); ++d) storage_offset += offsets[d] * tensor.stride(d);
  return tensor.as_strided(lengths, tensor.strides(), storage_offset);
}

// Calls body(offsets in held, offsets in part, lengths) for each block, a product of single ranges.
template <class Body>
void for_each_block(const Region& held, const Region& part, Body body) {
  const std::size_t ndim = part.dims.size();
  at::DimVector index(ndim, 0);
  for (;;) {
    at::DimVector in_held, in_part, lengths;
    for (std::size_t d = 0; d < ndim; ++d) {
      const Segment& s = part.dims[d][index[d]];
      in_held.push_back(concatenated_index(held.dims[d], s.offset));
      in_part.push_back(concatenated_index(part.dims[d], s.offset));
      lengths.push_back(s.length);
    }
    body(in_held, in_part, lengths);
    std::size_t d = 0;
    while (d < ndim && ++index[d] == static_cast<std::int64_t>(part.dims[d].size())) index[d++] = 0;
    if (d == ndim) return;
  }
}

}  // namespace

std::int64_t concatenated_index(const Segments& held, std::int64_t index) {
  std::int64_t before = 0;
  for (const Segment& s : held) {
    if (index < s.offset + s.length) return before + index - s.offset;
    before += s.length;
  }
  return before;
}

at::Tensor select_segments(const at::Tensor& full, std::int64_t dim, const Segments& segments) {
  std::vector<at::Tensor> parts;
  for (const auto& s : segments) parts.push_back(full.narrow(dim, s.offset, s.length));
  return parts.size() == 1 ? parts.front() : at::cat(parts, dim);
}

std::optional<at::Tensor> view_of(const at::Tensor& local, const Region& held, const Region& part) {
  at::DimVector offsets, lengths;
  for (std::size_t dim = 0; dim < part.dims.size(); ++dim) {
    const Segments& ranges = part.dims[dim];
    if (ranges.size() > 1) return std::nullopt;
    offsets.push_back(ranges.empty() || ranges[0].length == 0 ? 0
                                                              : concatenated_index(held.dims[dim], ranges[0].offset));
    lengths.push_back(ranges.empty() ? 0 : ranges[0].length);
  }
  return block(local, offsets, lengths);
}

at::Tensor read_part(const at::Tensor& local, const Region& held, const Region& part) {
  if (const auto view = view_of(local, held, part)) return *view;
  const at::Tensor values = result_buffer(part.sizes(), local);
  if (values.numel() == 0) return values;
  for_each_block(held, part, [&](at::IntArrayRef from, at::IntArrayRef to, at::IntArrayRef lengths) {
    block(values, to, lengths).copy_(block(local, from, lengths));
  });
  return values;
}

void write_part(const at::Tensor& local, const Region& held, const Region& part, const at::Tensor& values) {
  if (values.numel() == 0) return;
  for_each_block(held, part, [&](at::IntArrayRef to, at::IntArrayRef from, at::IntArrayRef lengths) {
    block(local, to, lengths).copy_(block(values, from, lengths));
  });
}

}  // namespace dtensor
