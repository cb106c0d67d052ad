// A part of a stored tensor, as ranges of its elements: reading them, and their checksum.
#pragma once

#include <map>
#include <string>

#include "checkpoint/format/checksum.h"
#include "checkpoint/format/file.h"
#include "dtensor/checkpoint.h"
#include "dtensor/contiguous_ranges.h"

namespace dtensor::files {

// Files that are read, each opened when it is first asked for.
class Files {
 public:
  const File& of(const std::string& path);

 private:
  std::map<std::string, File> open_;
};

std::int64_t item_of(const CheckpointEntry& entry);  // bytes of an element

// The elements [first, first + count) of the part that `ranges` is, to `data`, as they are stored.
void read_ranges(const ContiguousRanges& ranges, const CheckpointEntry& entry, const File& file, std::int64_t first,
                 char* data, std::int64_t count);
// Of the same elements. A count below 1: of none.
Checksum checksum_of(const ContiguousRanges& ranges, const CheckpointEntry& entry, std::int64_t first, const char* data,
                     std::int64_t count);

}  // namespace dtensor::files
