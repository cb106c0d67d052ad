// A part of a stored tensor, as ranges of its elements: reading them, and their checksum.
#pragma once

#include <list>
#include <string>
#include <utility>

#include "checkpoint/format/checksum.h"
#include "checkpoint/format/files/file.h"
#include "dtensor/checkpoint.h"
#include "internal/contiguous_ranges.h"

namespace dtensor::files {

// Files that are read, opened when they are asked for. A folder may have more of them than a process may have open, so
// only those that were asked for last stay open.
class Files {
 public:
  const File& of(const std::string& path);  // until another is asked for

 private:
  std::list<std::pair<std::string, File>> open_;  // the last one first
};

std::int64_t element_bytes(const CheckpointEntry& entry);  // bytes of an element

// The elements [first, first + count) of the part that `ranges` is, to `data`, as they are stored.
void read_ranges(const ContiguousRanges& ranges, const CheckpointEntry& entry, const File& file, std::int64_t first,
                 char* data, std::int64_t count);
// Of the same elements. A count below 1: of none.
Checksum checksum_of(const ContiguousRanges& ranges, const CheckpointEntry& entry, std::int64_t first, const char* data,
                     std::int64_t count);

}  // namespace dtensor::files
