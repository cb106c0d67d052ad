// What to train on: text files, one token a byte, or as a tokenizer cuts them. Every process reads the same files in
// the same order, and a step's batch is a pure function of seed and step, so all ranks and all meshes see the same
// batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "args.h"
#include "dtensor/comm.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "tokenizer/tokenizer.h"

namespace train {

struct Batch {
  at::Tensor ids, targets;  // int64 [batch, sequence]; targets are the next tokens
  // int64 [batch, sequence]: the positions where the documents of a row begin, then the length of a sequence as often
  // as it takes to fill the row. Undefined where there are none.
  at::Tensor documents = {};
  // Some rows of it.
  Batch narrow(std::int64_t first, std::int64_t count) const;
};

// Batch::documents of these ids, where `end` is the last token of each document.
at::Tensor documents_of(const at::Tensor& ids, std::int64_t end);

struct BatchShape {
  std::int64_t batch, sequence;
  bool documents = false;             // each sequence is made of pieces of text,
  std::int64_t end = kEndOfDocument;  // each ended by this token
};

// The vocabulary that is shipped, trained on LibTorch's headers (tools/tokenizer/make.py).
std::string shipped_tokenizer();
// A file or folder, or `shipped`. Throws UsageError where it cannot be read.
tokenizer::Tokenizer read_tokenizer(const std::string& name);
// The special token that ends a text: <|endoftext|>, <|end_of_text|>, </s> or <eos>, the first of these that there is;
// empty: none.
std::string end_of_text(const tokenizer::Tokenizer& tokenizer);

class Corpus {
 public:
  // Files, or folders whose files are taken in sorted order; none: the headers of the LibTorch of this build. Throws
  // UsageError for a path that does not exist or cannot be read, and where there is less text than one sequence.
  // Without a tokenizer, tokens are bytes; with one, its end of a text (if it has one) ends each file.
  static Corpus read(const std::vector<std::string>& paths, std::int64_t sequence,
                     const tokenizer::Tokenizer* tokenizer = nullptr);
  // Tokens that are there already.
  static Corpus of(std::vector<std::int32_t> tokens, std::int64_t sequence);

  // An error that names them where ranks hold other tokens than rank 0. Collective.
  void check_same(const dtensor::Communicator& world) const;

  Batch batch(std::uint64_t seed, std::int64_t step, const BatchShape& shape) const;
  std::size_t bytes() const { return bytes_; }
  std::size_t tokens() const { return text_.empty() ? tokens_.size() : text_.size(); }
  std::size_t files() const { return files_; }
  // A hash of all tokens in their order. Computed once, when the corpus is made: thread ranks share the corpus.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  void finish(std::int64_t sequence);  // checks the length, computes the fingerprint
  std::int64_t token(std::uint64_t at) const {
    return text_.empty() ? tokens_[at] : static_cast<unsigned char>(text_[at]);
  }
  void fill(std::uint64_t seed, std::int64_t row, const BatchShape& shape, std::vector<std::int64_t>& tokens) const;

  std::string text_;                  // empty where there are
  std::vector<std::int32_t> tokens_;  // these
  std::size_t files_ = 0, bytes_ = 0;
  std::uint64_t fingerprint_ = 0;
};

// A tensor of a batch, which each rank has whole and the same: nothing is agreed, so there is no collective.
at::Tensor place_batch(const at::Tensor& full, const dtensor::DeviceMesh& mesh, const dtensor::Placements& where);

}  // namespace train
