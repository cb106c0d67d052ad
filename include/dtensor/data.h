// Tokens to train on: files of them, and batches that are a function of a seed and the number of the step alone, so
// that any number of ranks sees the same global batches, from any step on, and nothing but the step need be saved.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"

namespace dtensor {

// How a token is stored, in the byte order of this machine.
enum class TokenDtype : std::uint8_t { uint16, uint32 };

// Files of bare tokens, one after the other, as one stream. Read where they are asked for: nothing of them is kept in
// memory but by the operating system. A cheap handle; may be used by several threads.
class DTENSOR_API TokenFiles {
 public:
  // Throws c10::Error for a file that cannot be read or that ends within a token.
  explicit TokenFiles(const std::vector<std::string>& paths, TokenDtype dtype = TokenDtype::uint16);

  // Tokens in all files.
  std::int64_t size() const;
  // Writes the tokens [first, first + count) to `to`. Throws c10::Error where there are not so many.
  void read(std::int64_t first, std::int64_t count, std::int64_t* to) const;
  // So many were read through this handle and its copies.
  std::int64_t tokens_read() const;

 private:
  struct State;
  State& state() const;  // throws where this was moved from

  std::shared_ptr<State> state_;
};

// Writes such a file, whole or not at all: of several who write it at once, the last is what is left. Throws c10::Error
// where a token does not fit the dtype.
DTENSOR_API void write_token_file(const std::string& path, c10::IntArrayRef tokens,
                                  TokenDtype dtype = TokenDtype::uint16);

// Of TokenBatches.
struct TokenBatchOptions {
  std::int64_t batch = 1;     // sequences in the global batch of a step
  std::int64_t sequence = 1;  // tokens of a sequence; one more is read, for the last target
  std::uint64_t seed = 0;     // of the order of sequences, another one in each epoch
  bool shuffle = true;        // else in the order of the files
};

// The stream is cut into sequences, each of which comes once in an epoch; the rest of the stream that makes no whole
// one is left out. Step s has sequences s * batch to (s + 1) * batch - 1 of the endless row of epochs.
class DTENSOR_API TokenBatches {
 public:
  // Throws c10::Error where the files have less than one sequence and its last target.
  TokenBatches(TokenFiles files, TokenBatchOptions options);

  // ids [batch, sequence] and the next tokens, of the same sizes; int64.
  struct Batch {
    // [batch, sequence] int64.
    at::Tensor ids, targets;
  };
  // Whole, as plain tensors. Throws c10::Error for a step below 0, or beyond which sequences could not be counted.
  Batch at(std::int64_t step) const;
  // As DTensors, of which each rank reads what it holds. Not collective.
  Batch at(std::int64_t step, const DeviceMesh& mesh, const Placements& placements) const;

  // Sequences in an epoch.
  std::int64_t sequences() const { return sequences_; }

 private:
  std::int64_t first_token(std::int64_t step, std::int64_t row) const;

  TokenFiles files_;
  TokenBatchOptions options_;
  std::int64_t sequences_ = 0;
};

}  // namespace dtensor
