// Ranks on one machine that hold the same part of a tensor each read a share of it and broadcast it to the others.
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
  // `parts[i]` describes this rank's part of tensor i: equal strings for equal parts, empty for none. Collective.
  SharedReads(const Communicator& ranks, const std::vector<std::string>& parts);

  // Consecutive elements, row-major, in the stored dtype.
  using OnElements = std::function<void(std::int64_t first, char* data, std::int64_t count)>;
  // Allocates the buffer for fill() and each_block() in advance, so that a failure can be raised before the first
  // broadcast. fill() and each_block() allocate it if needed.
  void prepare(std::size_t i, const at::Tensor& to, at::ScalarType stored);
  void reserve(std::size_t i, std::int64_t numel, at::ScalarType stored, std::int64_t inner = 1);
  // Fills `to`, this rank's part of tensor i, with any strides, device and dtype. `read` is called for each piece on
  // one of the ranks that hold the part, `filled` on all of them. Reads directly into contiguous host memory of the
  // stored dtype, else through a buffer of 4 MiB (kBufferBytes).
  // Collective over the ranks that hold the part. Exceptions of `read`, `filled` and the copy to `to` are kept for
  // error(), so that the broadcasts still match.
  void fill(std::size_t i, const at::Tensor& to, at::ScalarType stored, const OnElements& read,
            const OnElements& filled);
  // Same for `numel` elements in rows of `inner`, which are not stored: `take` receives each block.
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

  std::vector<const Communicator*> groups_;  // by tensor; null: this rank alone
  std::map<std::vector<std::int64_t>, Communicator> communicators_;
  at::Tensor buffer_;  // of one round
  std::string error_;
};

// Keys for SharedReads: indices of a dimension, and this rank's part of a tensor.
std::string segments_text(const Segments& segments);
std::string part_text(const at::Tensor& tensor);

}  // namespace dtensor::files
