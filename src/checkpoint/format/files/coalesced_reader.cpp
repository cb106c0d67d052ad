// Merges short, close ranges into reads of at most 1 MiB.
#include "checkpoint/format/files/coalesced_reader.h"

#include <cstring>

namespace dtensor::files {
namespace {

// A system call costs as much as reading 2 KiB from the page cache; disks read pages of 4 KiB.
constexpr std::int64_t kWindow = 1 << 20, kLong = 1 << 10, kGap = 4 << 10;
constexpr std::size_t kMost = 1 << 14;  // ranges

}  // namespace

void CoalescedReader::request(std::int64_t offset, std::int64_t bytes, char* to) {
  if (bytes >= kLong) {
    file_.read(to, bytes, offset);
    return;
  }
  if (!ranges_.empty()) {
    const std::int64_t end = ranges_.back().offset + ranges_.back().bytes;
    const bool close = offset >= end && offset - end <= kGap && offset + bytes - ranges_.front().offset <= kWindow;
    if (!close || ranges_.size() == kMost) flush();
  }
  ranges_.push_back({offset, bytes, to});
}

void CoalescedReader::flush() {
  if (ranges_.empty()) return;
  const std::int64_t begin = ranges_.front().offset, end = ranges_.back().offset + ranges_.back().bytes;
  if (ranges_.size() == 1) {
    file_.read(ranges_[0].to, end - begin, begin);
  } else {
    window_.resize(static_cast<std::size_t>(end - begin));
    file_.read(window_.data(), end - begin, begin);
    for (const Range& r : ranges_)
      std::memcpy(r.to, window_.data() + (r.offset - begin), static_cast<std::size_t>(r.bytes));
  }
  ranges_.clear();
}

}  // namespace dtensor::files
