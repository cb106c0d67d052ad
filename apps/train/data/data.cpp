// Training data: text files as tokens.
#include "train/data/data.h"

#include <ATen/ATen.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "dtensor/dry_run.h"
#include "dtensor/tensor.h"
#include "input_file.h"
#include "program_data.h"
#include "train/data/hash.h"

namespace train {
namespace fs = std::filesystem;
namespace {

std::vector<fs::path> files_under(const fs::path& path) {
  if (!fs::exists(path)) throw UsageError("--data: no file or folder " + path.string());
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());  // Directory order is unspecified.
  return files;
}

void append_file(const fs::path& path, std::string& text) {
  auto in = input_file::open<UsageError>("--data", path);
  text.append(std::istreambuf_iterator<char>(in), {});
  if (!in) throw UsageError("--data: cannot read " + path.string());
}

}  // namespace

std::string shipped_tokenizer() { return program_data("train/tokenizer.json"); }

tokenizer::Tokenizer read_tokenizer(const std::string& name) {
  try {
    return tokenizer::Tokenizer::read(name == "shipped" ? shipped_tokenizer() : name);
  } catch (const tokenizer::Error& error) {
    throw UsageError(std::string("--tokenizer: ") + error.what());
  }
}

std::string end_of_text(const tokenizer::Tokenizer& tokenizer) {
  for (const char* end : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}) {
    const auto ids = tokenizer.encode(end);
    if (ids.size() == 1 && tokenizer.decode(ids, /*with_special=*/false).empty()) return end;
  }
  return "";
}

Corpus Corpus::read(const std::vector<std::string>& paths, std::int64_t sequence,
                    const tokenizer::Tokenizer* tokenizer) {
  Corpus corpus;
  const std::string end = tokenizer != nullptr ? end_of_text(*tokenizer) : "";
  std::size_t ends = 0;  // Bytes that occur in no file.
  for (const std::string& path : paths.empty() ? std::vector<std::string>{DTENSOR_TRAIN_TEXT} : paths) {
    for (const fs::path& file : files_under(path)) {
      append_file(file, corpus.text_);
      corpus.bytes_ = corpus.text_.size() - ends;
      corpus.text_ += end;
      ends += end.size();
      ++corpus.files_;
    }
  }
  if (tokenizer != nullptr) {
    corpus.tokens_ = tokenizer->encode(corpus.text_);
    corpus.text_.clear();
  }
  corpus.finish(sequence);
  return corpus;
}

Corpus Corpus::of(std::vector<std::int32_t> tokens, std::int64_t sequence) {
  Corpus corpus;
  corpus.tokens_ = std::move(tokens);
  corpus.finish(sequence);
  return corpus;
}

void Corpus::finish(std::int64_t sequence) {
  if (tokens() <= static_cast<std::size_t>(sequence)) {
    throw UsageError("--data: " + std::to_string(tokens()) + (tokens_.empty() ? " bytes of text" : " tokens") +
                     ", expected more than --seq " + std::to_string(sequence));
  }
  fingerprint_ = text_.empty() ? XXH3_64bits(tokens_.data(), tokens_.size() * sizeof(std::int32_t))
                               : XXH3_64bits(text_.data(), text_.size());
}

void Corpus::check_same(const dtensor::Communicator& world) const {
  const auto mine = at::empty({2}, at::kLong), all = at::empty({world.size(), 2}, at::kLong);
  mine[0].fill_(static_cast<std::int64_t>(tokens())), mine[1].fill_(static_cast<std::int64_t>(fingerprint()));
  world.all_gather(all.unbind(0), mine).wait();
  for (int rank = 1; rank < world.size(); ++rank) {
    if (at::equal(all[rank], all[0])) continue;
    throw UsageError(c10::str("--data: rank ", rank, " reads ", all[rank][0].item<std::int64_t>(), " tokens, rank 0 ",
                              all[0][0].item<std::int64_t>(), "; expected the same text on all ranks"));
  }
}

// Reads one token more than a sequence. Documents have between an eighth and a half of the sequence.
void Corpus::fill(std::uint64_t seed, std::int64_t row, const BatchShape& shape,
                  std::vector<std::int64_t>& tokens) const {
  const auto length = static_cast<std::uint64_t>(tokens.size());
  const std::uint64_t starts = this->tokens() - length + 1;
  const std::uint64_t row_hash = hash64(seed, row);
  std::uint64_t at = row_hash % starts, left = length;
  for (std::uint64_t t = 0, document = 0; t < length; ++t) {
    if (shape.documents && (t == 0 || tokens[t - 1] == shape.end)) {
      at = hash64(row_hash, 2 * document) % starts;
      left = length / 8 + hash64(row_hash, 2 * document + 1) % (length / 2 - length / 8 + 1);
      ++document;
    }
    tokens[t] = left-- == 0 ? shape.end : token(at++);
  }
}

Batch Batch::narrow(std::int64_t first, std::int64_t count) const {
  const auto rows = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, first, count) : t; };
  return {rows(ids), rows(targets), rows(documents)};
}

at::Tensor documents_of(const at::Tensor& ids, std::int64_t end) {
  const std::int64_t batch = ids.size(0), length = ids.size(1);
  const at::Tensor documents = at::full({batch, length}, length, at::kLong);
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto* row = ids.const_data_ptr<std::int64_t>() + b * length;
    auto* next = documents.mutable_data_ptr<std::int64_t>() + b * length;
    for (std::int64_t t = 0; t < length; ++t) {
      if (t == 0 || row[t - 1] == end) *next++ = t;
    }
  }
  return documents;
}

namespace {

// A batch of a dry run, which needs no tokens: one document for each row.
Batch empty_batch(const BatchShape& shape) {
  const at::Tensor ids = at::zeros({shape.batch, shape.sequence}, at::kLong);
  if (!shape.documents) return {ids, ids.clone()};
  const at::Tensor documents = at::full({shape.batch, shape.sequence}, shape.sequence, at::kLong);
  documents.select(1, 0).zero_();
  return {ids, ids.clone(), documents};
}

}  // namespace

Batch Corpus::batch(std::uint64_t seed, std::int64_t step, const BatchShape& shape) const {
  if (dtensor::is_dry_run()) return empty_batch(shape);
  at::Tensor ids = at::empty({shape.batch, shape.sequence}, at::kLong), targets = at::empty_like(ids);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(shape.sequence) + 1);
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    fill(seed, step * shape.batch + b, shape, tokens);
    std::copy(tokens.begin(), tokens.end() - 1, ids.mutable_data_ptr<std::int64_t>() + b * shape.sequence);
    std::copy(tokens.begin() + 1, tokens.end(), targets.mutable_data_ptr<std::int64_t>() + b * shape.sequence);
  }
  return {ids, targets, shape.documents ? documents_of(ids, shape.end) : at::Tensor()};
}

at::Tensor to_device(const at::Tensor& t, c10::DeviceType device) {
  if (!t.is_cpu() || device == c10::kCPU) return t.to(device);
  return t.pin_memory().to(device, t.scalar_type(), /*non_blocking=*/true);
}

at::Tensor place_batch(const at::Tensor& full_tensor, const dtensor::DeviceMesh& mesh,
                       const dtensor::Placements& where) {
  const dtensor::Placements everywhere(static_cast<std::size_t>(mesh.ndim()));
  const auto placed =
      dtensor::DTensor::from_local(to_device(full_tensor, mesh.device_type()), mesh, everywhere, full_tensor.sizes());
  return where == everywhere ? placed : placed.redistribute(where);
}

}  // namespace train
