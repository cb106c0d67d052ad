// Token data for training: token files, and batches that depend only on a seed and the step number. So any number of
// ranks sees the same global batches, and a checkpoint needs to store only the step to resume.
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

// A stream of the concatenated tokens of headerless files. Tokens are read on demand; only the operating system caches
// them. Copies share their state. Several threads may use it.
class DTENSOR_API TokenFiles {
 public:
  // Storage type of a token, in the byte order of this machine.
  enum class Dtype : std::uint8_t { uint16, uint32 };

  // Throws c10::Error if a file cannot be read or ends within a token.
  explicit TokenFiles(const std::vector<std::string>& paths, Dtype dtype = Dtype::uint16);

  // Number of tokens in all files.
  std::int64_t size() const;
  // Writes the tokens [first, first + count) to `to`. Throws c10::Error if the range exceeds the files.
  void read(std::int64_t first, std::int64_t count, std::int64_t* to) const;
  // Number of tokens read through this object and its copies.
  std::int64_t tokens_read() const;

 private:
  struct State;
  State& state() const;  // Throws if the object was moved from.

  std::shared_ptr<State> state_;
};

// Writes a token file atomically. If several processes write it at once, the last one wins. Throws c10::Error if a
// token does not fit the dtype.
DTENSOR_API void write_token_file(const std::string& path, c10::IntArrayRef tokens,
                                  TokenFiles::Dtype dtype = TokenFiles::Dtype::uint16);

// Splits the stream into sequences, each of which occurs once in an epoch. An incomplete sequence at the end is left
// out. Step s has sequences s * batch to (s + 1) * batch - 1 of the concatenation of all epochs.
class DTENSOR_API TokenBatches {
 public:
  // Options of the constructor.
  struct Options {
    std::int64_t batch = 1;  // Sequences in the global batch of a step.
    // Tokens of a sequence. One more is read for the last target.
    std::int64_t sequence = 1;
    std::uint64_t seed = 0;  // Seed of the order of sequences, which differs in each epoch.
    bool shuffle = true;     // False: the order of the files.
  };
  // Throws c10::Error if the files have less than one sequence and its last target.
  TokenBatches(TokenFiles files, Options options);

  // Token ids and the next tokens as targets.
  struct Batch {
    // Both are [batch, sequence], int64.
    at::Tensor ids, targets;
  };
  // The full batch as regular tensors. Throws c10::Error if `step` is negative or so large that sequence numbers
  // overflow.
  Batch at(std::int64_t step) const;
  // The batch as DTensors, of which each rank reads only its part. Not collective.
  Batch at(std::int64_t step, const DeviceMesh& mesh, const Placements& placements) const;

  // Number of sequences in an epoch.
  std::int64_t sequences() const { return sequences_; }

 private:
  std::int64_t first_token(std::int64_t step, std::int64_t row) const;

  TokenFiles files_;
  Options options_;
  std::int64_t sequences_ = 0;
};

}  // namespace dtensor
