// The local destination of a stored tensor or of a slice of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "checkpoint/load/mapped_checksums.h"
#include "checkpoint/load/read_ranges.h"
#include "checkpoint/load/shared_reads.h"
#include "checkpoint/load/stored_pieces.h"
#include "dtensor/checkpoint.h"
#include "internal/contiguous_ranges.h"

namespace dtensor::files {

struct ReadTarget {
  const CheckpointEntry* entry = nullptr;
  at::Tensor to = {};                 // in stored dimensions; undefined: nothing on this rank
  std::vector<Segments> wanted = {};  // indices of the stored tensor, by dimension
  bool owns_checksum = false;         // whether this replica contributes to the checksum

  // Whether to read full rows, of which each rank takes its part. Used for tensors sharded within rows, whose ranges
  // would be short and interleaved with those of other ranks.
  bool by_rows() const;
  std::string text() const;  // key for SharedReads
  void prepare(SharedReads& reads, std::size_t i) const;
  void read(SharedReads& reads, std::size_t i, Files& files, NamedChecksums& sums) const;

 private:
  std::vector<std::int64_t> row_sizes() const;
};

ReadTarget make_read_target(const at::Tensor& target, const StoredPiece& piece, const CheckpointEntry& entry);

}  // namespace dtensor::files
