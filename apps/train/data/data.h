// Training data: text files, with bytes as tokens or with a tokenizer. Every process reads the same files in the same
// order, and the batch of a step depends on seed and step only, so it is the same on all ranks and meshes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "tokenizer/tokenizer.h"
#include "train/args.h"

namespace train {

struct Batch {
  at::Tensor ids, targets;  // int64 [batch, sequence]; targets are the next tokens
  // int64 [batch, sequence]: the positions where the documents of a row begin, padded with the sequence length.
  // Undefined without documents.
  at::Tensor documents = {};
  // Rows [first, first + count).
  Batch narrow(std::int64_t first, std::int64_t count) const;
};

// Batch::documents of these ids, where `end` is the last token of each document.
at::Tensor documents_of(const at::Tensor& ids, std::int64_t end);

struct BatchShape {
  std::int64_t batch, sequence;
  bool documents = false;             // Packs pieces of text into each sequence.
  std::int64_t end = kEndOfDocument;  // The token that ends each document.
};

// The shipped vocabulary, trained on LibTorch's headers (tools/tokenizer/make.py).
std::string shipped_tokenizer();
// A file or folder, or `shipped`. Throws UsageError if it cannot be read.
tokenizer::Tokenizer read_tokenizer(const std::string& name);
// The special token that ends a text: the first of <|endoftext|>, <|end_of_text|>, </s> and <eos> that the tokenizer
// has, or empty.
std::string end_of_text(const tokenizer::Tokenizer& tokenizer);

class Corpus {
 public:
  // Reads files, and the files of folders in sorted order; without paths, the headers of this build's LibTorch. Throws
  // UsageError for a path that cannot be read, and if there is less text than one sequence. Without a tokenizer, tokens
  // are bytes; with one, its end-of-text token (if any) ends each file.
  static Corpus read(const std::vector<std::string>& paths, std::int64_t sequence,
                     const tokenizer::Tokenizer* tokenizer = nullptr);
  // A corpus of existing tokens.
  static Corpus of(std::vector<std::int32_t> tokens, std::int64_t sequence);

  // Throws if a rank has other tokens than rank 0, and names it. Collective.
  void check_same(const dtensor::Communicator& world) const;

  Batch batch(std::uint64_t seed, std::int64_t step, const BatchShape& shape) const;
  std::size_t bytes() const { return bytes_; }
  std::size_t tokens() const { return text_.empty() ? tokens_.size() : text_.size(); }
  std::size_t files() const { return files_; }
  // A hash of the sequence of tokens. It is computed once, when the corpus is created: thread ranks share the corpus.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  void finish(std::int64_t sequence);  // Checks the length, computes the fingerprint.
  std::int64_t token(std::uint64_t at) const {
    return text_.empty() ? tokens_[at] : static_cast<unsigned char>(text_[at]);
  }
  void fill(std::uint64_t seed, std::int64_t row, const BatchShape& shape, std::vector<std::int64_t>& tokens) const;

  std::string text_;                  // Byte tokens; empty with a tokenizer.
  std::vector<std::int32_t> tokens_;  // Tokens of a tokenizer; empty without one.
  std::size_t files_ = 0, bytes_ = 0;
  std::uint64_t fingerprint_ = 0;
};

// A tensor of a batch on a device. Copied from pinned memory, so that the host does not wait for the device.
at::Tensor to_device(const at::Tensor& t, c10::DeviceType device);
// Distributes a tensor of a batch that is equal on all ranks, without a collective.
at::Tensor place_batch(const at::Tensor& full, const dtensor::DeviceMesh& mesh, const dtensor::Placements& where);

}  // namespace train
