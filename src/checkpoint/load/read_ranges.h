// Reads a part of a stored tensor as ranges of elements, and computes its checksum.
#pragma once

#include <list>
#include <string>
#include <utility>

#include "checkpoint/format/checksum.h"
#include "checkpoint/format/files/file.h"
#include "dtensor/checkpoint.h"
#include "internal/contiguous_ranges.h"

namespace dtensor::files {

// LRU cache of open files, because a folder may have more files than a process may open.
class Files {
 public:
  const File& of(const std::string& path);  // valid until the next call

 private:
  std::list<std::pair<std::string, File>> open_;  // most recently used first
};

std::int64_t element_bytes(const CheckpointEntry& entry);  // bytes of an element

// Reads the elements [first, first + count) of the part into `data`, in the stored dtype.
void read_ranges(const ContiguousRanges& ranges, const CheckpointEntry& entry, const File& file, std::int64_t first,
                 char* data, std::int64_t count);
// Checksum of these elements; 0 if count < 1.
Checksum checksum_of(const ContiguousRanges& ranges, const CheckpointEntry& entry, std::int64_t first, const char* data,
                     std::int64_t count);

}  // namespace dtensor::files
