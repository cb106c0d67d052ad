// What to train on: the bytes of text files, one token a byte.
#include "data.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "args.h"
#include "hash.h"

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
  std::sort(files.begin(), files.end());  // directory order is the file system's whim
  return files;
}

void append_file(const fs::path& path, std::string& text) {
  std::ifstream in(path, std::ios::binary);
  text.append(std::istreambuf_iterator<char>(in), {});
  if (!in) throw UsageError("--data: cannot read " + path.string());
}

}  // namespace

Corpus Corpus::read(const std::vector<std::string>& paths, std::int64_t sequence) {
  Corpus corpus;
  for (const std::string& path : paths.empty() ? std::vector<std::string>{DTENSOR_TRAIN_TEXT} : paths) {
    for (const fs::path& file : files_under(path)) {
      append_file(file, corpus.text_);
      ++corpus.files_;
    }
  }
  if (corpus.text_.size() < static_cast<std::size_t>(sequence) + 1) {
    throw UsageError("--data: " + std::to_string(corpus.text_.size()) + " bytes of text are too few for --seq " +
                     std::to_string(sequence));
  }
  return corpus;
}

Batch Corpus::batch(std::uint64_t seed, std::int64_t step, std::int64_t batch, std::int64_t sequence) const {
  at::Tensor ids = at::empty({batch, sequence}, at::kLong), targets = at::empty_like(ids);
  std::int64_t* id = ids.mutable_data_ptr<std::int64_t>();
  std::int64_t* target = targets.mutable_data_ptr<std::int64_t>();
  const std::uint64_t starts = text_.size() - sequence;
  for (std::int64_t b = 0; b < batch; ++b) {
    const char* from = text_.data() + hash64(seed, step * batch + b) % starts;
    for (std::int64_t t = 0; t < sequence; ++t) {
      *id++ = static_cast<unsigned char>(from[t]);
      *target++ = static_cast<unsigned char>(from[t + 1]);
    }
  }
  return {ids, targets};
}

}  // namespace train
