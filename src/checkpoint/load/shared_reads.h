// Ranks of one machine that hold the same part of a tensor read it together: each a share, which the others get from it
// and not from the file.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dtensor/comm.h"
#include "internal/shard_segments.h"

namespace dtensor::files {

class SharedReads {
 public:
  // `parts[i]` tells what of the i-th tensor this rank holds, by an equal text where it is the same; empty: nothing.
  // Collective.
  SharedReads(const Communicator& ranks, const std::vector<std::string>& parts);

  // Consecutive elements, row-major, in the dtype in which they are stored.
  using OnElements = std::function<void(std::int64_t first, char* data, std::int64_t count)>;
  // Memory for what fill() and each_block() will do, which take it themselves otherwise: a rank that has none tells so
  // before any is handed on, and nobody is left waiting for it.
  void prepare(std::size_t i, const at::Tensor& to, at::ScalarType stored);
  void reserve(std::size_t i, std::int64_t numel, at::ScalarType stored, std::int64_t inner = 1);
  // Fills `to`, this rank's part of the i-th tensor, whatever its strides, device and dtype: `read` is asked for its
  // elements piece by piece, on one of the ranks that hold the part; `filled` hears of all on each. Pieces go straight
  // to memory that fits, else through a buffer of 4 MiB (kBufferBytes). Collective over the ranks that hold the part;
  // what `read`, `filled` and the copy to `to` throw is kept for error(), so that nobody is left waiting.
  void fill(std::size_t i, const at::Tensor& to, at::ScalarType stored, const OnElements& read,
            const OnElements& filled);
  // The same for `numel` elements in rows of `inner`, which no rank keeps as they are: each takes from the blocks what
  // it wants.
  void each_block(std::size_t i, std::int64_t numel, std::int64_t inner, at::ScalarType stored, const OnElements& read,
                  const OnElements& take);
  const std::string& error() const { return error_; }

 private:
  struct Piece {
    at::Tensor to, memory;
    std::int64_t first;
  };
  std::size_t readers(std::size_t i) const;
  std::int64_t most(std::size_t i, at::ScalarType stored, std::int64_t inner = 1) const;
  at::Tensor memory_after(const std::vector<Piece>& round, at::IntArrayRef sizes, at::ScalarType stored) const;
  void keep_error(const std::function<void()>& fn);
  void fill_round(std::size_t i, const std::vector<Piece>& pieces, const OnElements& read);

  std::vector<const Communicator*> groups_;  // of each tensor; null: this rank alone
  std::map<std::vector<std::int64_t>, Communicator> communicators_;
  at::Tensor buffer_;  // of one round
  std::string error_;
};

// For SharedReads: indices of a dimension, and what this rank holds of a tensor.
std::string segments_text(const Segments& segments);
std::string part_text(const at::Tensor& tensor);

}  // namespace dtensor::files
