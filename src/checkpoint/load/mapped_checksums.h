// Checksums in loads by a table of names: of those stored tensors whose elements are all read, equally often each.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format/checksum.h"
#include "checkpoint/load/stored_pieces.h"
#include "dtensor/checkpoint.h"
#include "internal/contiguous_ranges.h"

namespace dtensor::files {

class NamedChecksums {
 public:
  // None where the folder has none, or `wanted` is false.
  NamedChecksums(const CheckpointIndex& index, bool wanted);

  // What one tensor takes, in each of its owner_groups (ManifestEntry::owner_groups); told of all tensors on every
  // rank, in one order.
  void expect(const std::vector<std::pair<StoredPiece, const CheckpointEntry*>>& pieces, std::int64_t owner_groups);
  // Elements that came to this rank, which answers for them in its home.
  void add(const CheckpointEntry& entry, const ContiguousRanges& ranges, std::int64_t first, const char* data,
           std::int64_t count);
  // Throws on every rank, with the names of what differs. Collective.
  void verify(const Communicator& ranks, const std::string& what) const;

 private:
  struct Use {
    StoredPiece piece;
    std::int64_t owner_groups;
  };
  struct Stored {
    const CheckpointEntry* entry;
    std::vector<Use> uses = {};
    Checksum sum = {};
  };
  static std::int64_t times_read(const Stored& stored);  // each of its elements; 0: not all equally often

  std::map<std::string, Stored> stored_;
};

}  // namespace dtensor::files
