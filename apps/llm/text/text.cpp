// Converts texts to tokens.
#include "llm/text/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "input_file.h"
#include "llm/usage_error.h"

namespace llm {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_under(const std::string& path, const std::string& flag) {
  if (!fs::exists(path)) throw UsageError(fmt::format("{}: no file or folder {}", flag, path));
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());  // Directory order is unspecified.
  return files;
}

class Reader {
 public:
  Reader(const Family& family, const std::string& folder, const std::string& field, const std::string& flag)
      : family_(family), folder_(folder), field_(field), flag_(flag) {}

  void add_file(const fs::path& path) {
    auto in = input_file::open<UsageError>(flag_, path);
    if (path.extension() == ".jsonl") return add_lines(in, path.string());
    add_text({std::istreambuf_iterator<char>(in), {}});
  }
  std::vector<std::int32_t> take() { return std::move(tokens_); }

 private:
  void add_lines(std::istream& in, const std::string& path) {
    std::string line;
    for (std::int64_t number = 1; std::getline(in, line); ++number) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const auto where = fmt::format("{}: {}:{}", flag_, path, number);
      try {
        const auto value = nlohmann::json::parse(line).at(field_);
        if (value.is_array()) {
          add_ids(value, where);
        } else {
          add_text(value.get<std::string>());
        }
      } catch (const nlohmann::json::exception& error) {
        throw UsageError(fmt::format("{}: {}", where, error.what()));
      }
    }
  }

  // Refuses non-integers, which the parser would round to an id.
  void add_ids(const nlohmann::json& ids, const std::string& where) {
    for (const auto& id : ids) {
      if (!id.is_number_integer() || id < 0 || id >= family_.config.vocabulary) {
        throw UsageError(
            fmt::format("{}: expected ids in [0, {}), got {}", where, family_.config.vocabulary, id.dump()));
      }
      tokens_.push_back(id.get<std::int32_t>());
    }
    end();
  }

  void add_text(const std::string& text) {
    if (!tokenizer_) tokenizer_ = read_tokenizer(folder_);
    const auto ids = tokenizer_->encode(text, /*frame=*/true);
    tokens_.insert(tokens_.end(), ids.begin(), ids.end());
    end();
  }

  void end() {
    const auto& ends = family_.end_tokens;
    const bool ended = !tokens_.empty() && std::find(ends.begin(), ends.end(), tokens_.back()) != ends.end();
    if (!ends.empty() && !ended) tokens_.push_back(static_cast<std::int32_t>(ends.front()));
  }

  const Family& family_;
  const std::string &folder_, &field_, &flag_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace

tokenizer::Tokenizer read_tokenizer(const std::string& folder) {
  const auto path = fs::path(folder) / "tokenizer.json";
  if (!fs::exists(path))
    throw UsageError(
        fmt::format("cannot find {}, which text needs: give token ids, in a prompt by --tokens 1,2,3, in a "
                    "JSONL file as a list in the field {{\"text\": [1, 2, 3]}}",
                    path.string()));
  try {
    return tokenizer::Tokenizer::read(path.string());
  } catch (const tokenizer::Error& error) {
    throw UsageError(error.what());
  }
}

std::vector<std::int32_t> read_tokens(const std::vector<std::string>& paths, const std::string& field,
                                      const Family& family, const std::string& folder, const std::string& flag) {
  Reader reader(family, folder, field, flag);
  for (const auto& path : paths) {
    for (const auto& file : files_under(path, flag)) reader.add_file(file);
  }
  return reader.take();
}

}  // namespace llm
