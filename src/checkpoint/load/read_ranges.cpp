// Converts ranges of elements to ranges of bytes.
#include "checkpoint/load/read_ranges.h"

#include <algorithm>

#include "checkpoint/format/files/coalesced_reader.h"

namespace dtensor::files {

namespace {

constexpr std::size_t kMaxOpenFiles = 16;  // per rank; a process may have many ranks

}  // namespace

const File& Files::of(const std::string& path) {
  const auto found = std::find_if(open_.begin(), open_.end(), [&](const auto& file) { return file.first == path; });
  if (found != open_.end()) {
    open_.splice(open_.begin(), open_, found);
  } else {
    if (open_.size() == kMaxOpenFiles) open_.pop_back();
    open_.emplace_front(path, File::open_to_read(path));
  }
  return open_.front().second;
}

std::int64_t element_bytes(const CheckpointEntry& entry) {
  return static_cast<std::int64_t>(c10::elementSize(entry.dtype));
}

void read_ranges(const ContiguousRanges& ranges, const CheckpointEntry& entry, const File& file, std::int64_t first,
                 char* data, std::int64_t count) {
  const std::int64_t item = element_bytes(entry);
  CoalescedReader reader(file);
  ranges.each(first, first + count, [&](std::int64_t local, const ContiguousRanges::Range& range) {
    reader.request(entry.offset + range.global * item, range.length * item, data + (local - first) * item);
  });
  reader.flush();
}

Checksum checksum_of(const ContiguousRanges& ranges, const CheckpointEntry& entry, std::int64_t first, const char* data,
                     std::int64_t count) {
  const std::int64_t item = element_bytes(entry);
  Checksum sum;
  ranges.each(first, first + count, [&](std::int64_t local, const ContiguousRanges::Range& range) {
    sum += checksum(data + (local - first) * item, item, range.length, range.global);
  });
  return sum;
}

}  // namespace dtensor::files
