// Checksums of loads with a StateDictKeyMapping, for stored tensors whose elements are all read equally often.
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
  // Verifies nothing if `wanted` is false or the folder has no checksums.
  NamedChecksums(const CheckpointIndex& index, bool wanted);

  // Registers the pieces of one tensor, which each of its owner_groups reads (ManifestEntry::owner_groups). Called for
  // all tensors on every rank, in the same order.
  void expect(const std::vector<std::pair<StoredPiece, const CheckpointEntry*>>& pieces, std::int64_t owner_groups);
  // Adds elements that this rank has read and whose checksum it owns.
  void add(const CheckpointEntry& entry, const ContiguousRanges& ranges, std::int64_t first, const char* data,
           std::int64_t count);
  // Throws on all ranks with the names of mismatching tensors. Collective.
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
  static std::int64_t times_read(const Stored& stored);  // how often each element is read; 0: not all equally often

  std::map<std::string, Stored> stored_;
};

}  // namespace dtensor::files
