// What to train on: the bytes of text files, one token a byte. Every process reads the same files in the same order,
// and a step's batch is a pure function of seed and step, so all ranks and all meshes see the same batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace train {

struct Batch {
  at::Tensor ids, targets;  // int64 [batch, sequence]; targets are the next tokens
};

struct BatchShape {
  std::int64_t batch, sequence;
  bool documents = false;  // each sequence is made of pieces of text, each ended by kEndOfDocument
};

class Corpus {
 public:
  // Files, or folders whose files are taken in sorted order; none: the headers of the LibTorch of this build. Throws
  // UsageError for a path that does not exist or cannot be read, and where there is less text than one sequence.
  static Corpus read(const std::vector<std::string>& paths, std::int64_t sequence);

  Batch batch(std::uint64_t seed, std::int64_t step, const BatchShape& shape) const;
  std::size_t bytes() const { return text_.size(); }
  std::size_t files() const { return files_; }

 private:
  void fill(std::uint64_t seed, std::int64_t row, bool documents, std::vector<std::int64_t>& tokens) const;

  std::string text_;
  std::size_t files_ = 0;
};

}  // namespace train
