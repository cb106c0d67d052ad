// Where a stored tensor, or a part of it, goes on this rank.
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
  at::Tensor to = {};                 // in dimensions as stored; undefined: nothing on this rank
  std::vector<Segments> wanted = {};  // indices of the stored tensor, by dimension
  bool owns_checksum = false;         // for the checksum of these elements, among those that hold the same

  // Split within rows, short ranges lie between those of other ranks: whole rows are read, and each rank takes its
  // part.
  bool by_rows() const;
  std::string text() const;  // for SharedReads
  void prepare(SharedReads& reads, std::size_t i) const;
  void read(SharedReads& reads, std::size_t i, Files& files, NamedChecksums& sums) const;

 private:
  std::vector<std::int64_t> row_sizes() const;
};

ReadTarget make_read_target(const at::Tensor& target, const StoredPiece& piece, const CheckpointEntry& entry);

}  // namespace dtensor::files
