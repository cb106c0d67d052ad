// Intersects stored pieces with this rank's shards.
#include "checkpoint/load/load_target.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "checkpoint/format/safetensors.h"
#include "checkpoint/local_part.h"
#include "dtensor/tensor.h"

namespace dtensor::files {
namespace {

constexpr std::int64_t kShort = 1 << 10;  // bytes of a range; for longer ones a system call is cheaper than a broadcast
constexpr std::int64_t kLongRow = 1 << 20;  // bytes; each participating rank has at least one row in the buffer

std::size_t dim_index(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Cut {
  Segments both;                      // indices of the full dimension
  std::int64_t begin = 0, count = 0;  // same as local indices
};

Cut intersection(const Segments& held, const Segment& range) {
  Cut cut;
  for (const Segment& s : held) {
    const std::int64_t from = std::max(s.offset, range.offset);
    const std::int64_t to = std::min(s.offset + s.length, range.offset + range.length);
    if (from < to) {
      cut.both.push_back({from, to - from});
      cut.count += to - from;
    } else if (s.offset < range.offset && cut.count == 0) {
      cut.begin += s.length;
      continue;
    }
    if (from < to && cut.both.size() == 1) cut.begin += from - s.offset;
  }
  return cut;
}

// The slices of `full` that the segments select in all dimensions but 0.
at::Tensor columns_of(at::Tensor full, const std::vector<Segments>& wanted) {
  for (std::size_t d = 1; d < wanted.size(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    std::vector<at::Tensor> parts;
    for (const Segment& s : wanted[d]) parts.push_back(full.narrow(dim, s.offset, s.length));
    full = parts.size() == 1 ? parts[0] : at::cat(parts, dim);
  }
  return full;
}

}  // namespace

bool ReadTarget::by_rows() const {
  if (entry->sizes.size() < 2 || to.numel() == 0) return false;
  std::int64_t inner = 1, own = 1;
  for (std::size_t d = 1; d < wanted.size(); ++d) inner *= entry->sizes[d], own *= total_length(wanted[d]);
  const std::int64_t range = ContiguousRanges(entry->sizes, wanted).at(0).length;
  return own < inner && range * element_bytes(*entry) < kShort && inner * element_bytes(*entry) <= kLongRow;
}

std::string ReadTarget::text() const {
  if (!to.defined()) return "";
  if (by_rows()) return "rows " + segments_text(wanted[0]);
  std::string text = "part ";
  for (const Segments& segments : wanted) text += segments_text(segments);
  return text;
}

// Sizes of the rows that this rank reads.
std::vector<std::int64_t> ReadTarget::row_sizes() const {
  std::vector<std::int64_t> sizes = entry->sizes;
  sizes[0] = total_length(wanted[0]);
  return sizes;
}

void ReadTarget::prepare(SharedReads& reads, std::size_t i) const {
  if (!by_rows()) return reads.prepare(i, to, entry->dtype);
  const auto sizes = row_sizes();
  reads.reserve(i, numel_of(sizes), entry->dtype, numel_of(sizes) / sizes[0]);
}

void ReadTarget::read(SharedReads& reads, std::size_t i, Files& files, NamedChecksums& sums) const {
  const ContiguousRanges ranges(entry->sizes, wanted);
  if (!by_rows()) {
    reads.fill(
        i, to, entry->dtype,
        [&](std::int64_t first, char* data, std::int64_t count) {
          read_ranges(ranges, *entry, files.of(entry->file), first, data, count);
        },
        [&](std::int64_t first, const char* data, std::int64_t count) {
          if (owns_checksum) sums.add(*entry, ranges, first, data, count);
        });
    return;
  }
  std::vector<Segments> full = {wanted[0]};
  const std::vector<std::int64_t> sizes = row_sizes();
  for (std::size_t d = 1; d < sizes.size(); ++d) full.push_back({{0, sizes[d]}});
  const ContiguousRanges rows(entry->sizes, full);
  const std::int64_t inner = rows.numel() / sizes[0], own = ranges.numel() / sizes[0];
  reads.each_block(
      i, rows.numel(), inner, entry->dtype,
      [&](std::int64_t first, char* data, std::int64_t count) {
        read_ranges(rows, *entry, files.of(entry->file), first, data, count);
      },
      [&](std::int64_t first, char* data, std::int64_t count) {
        auto block = sizes;
        block[0] = count / inner;
        const at::Tensor part = columns_of(at::from_blob(data, block, entry->dtype), wanted);
        to.narrow(0, first / inner, block[0]).copy_(part);
        if (!owns_checksum) return;
        const at::Tensor dense = part.contiguous();
        sums.add(*entry, ranges, first / inner * own, static_cast<const char*>(dense.const_data_ptr()), dense.numel());
      });
}

ReadTarget make_read_target(const at::Tensor& target, const StoredPiece& piece, const CheckpointEntry& entry) {
  ReadTarget there{.entry = &entry};
  if (!target.defined()) return there;
  const LocalShard held = local_shard_of(target);
  if (!held.local.defined()) return there;
  const at::NoGradGuard no_grad;
  at::Tensor to = held.local.detach();
  there.wanted.resize(dim_index(piece.stored_dims()));
  std::vector<Cut> cuts;
  for (std::size_t d = 0; d < piece.target_segments.size(); ++d) {
    cuts.push_back(intersection(held.segments[d], piece.target_segments[d]));
    if (cuts.back().count == 0) return there;
    to = to.narrow(static_cast<std::int64_t>(d), cuts[d].begin, cuts[d].count);
  }
  for (std::int64_t s = 0; s < piece.stored_dims(); ++s) {
    const auto d = dim_index(piece.dim_of_tensor(s));
    const std::int64_t shift =
        (piece.stored_slice.dim == s ? piece.stored_slice.begin : 0) - piece.target_segments[d].offset;
    for (Segment segment : cuts[d].both) {
      segment.offset += shift;
      there.wanted[dim_index(s)].push_back(segment);
    }
  }
  if (piece.index >= 0) to = to.squeeze(0);
  there.to = piece.transposed ? to.transpose(-1, -2) : to;
  there.owns_checksum = held.replica == 0;
  return there;
}

}  // namespace dtensor::files
