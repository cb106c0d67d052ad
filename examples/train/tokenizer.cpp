// Reading vocabularies and merging pairs.
#include "tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "args.h"
#include "words.h"

namespace train {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& where, const std::string& reason) {
  throw UsageError(fmt::format("--tokenizer: {}: {}", where, reason));
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse(path, "cannot be read");
  return {std::istreambuf_iterator<char>(in), {}};
}

// GPT-2 writes a byte as a printable character: itself where it is one of Latin-1, else the next free one from 256 on.
std::array<std::uint32_t, 256> printable_bytes() {
  std::array<std::uint32_t, 256> codes{};
  std::uint32_t next = 256;
  for (std::uint32_t b = 0; b < 256; ++b) {
    const bool prints = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    codes[b] = prints ? b : next++;
  }
  return codes;
}

// The bytes that such characters (UTF-8, of two bytes at most) stand for.
std::string bytes_of(const std::string& token, const std::string& where) {
  static const auto bytes = [] {
    std::array<int, 512> table{};
    table.fill(-1);
    const auto codes = printable_bytes();
    for (int b = 0; b < 256; ++b) table[codes[static_cast<std::size_t>(b)]] = b;
    return table;
  }();
  std::string result;
  for (std::size_t i = 0; i < token.size(); ++i) {
    std::uint32_t code = static_cast<unsigned char>(token[i]);
    if (code >= 0xC0 && i + 1 < token.size())
      code = (code & 0x1F) << 6 | (static_cast<unsigned char>(token[++i]) & 0x3F);
    if (code >= bytes.size() || bytes[code] < 0)
      refuse(where, "token '" + token + "' is not written in bytes (ByteLevel)");
    result.push_back(static_cast<char>(bytes[code]));
  }
  return result;
}

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

void check_model(const json& file, const std::string& where) {
  const auto& model = file.at("model");
  if (model.value("type", "BPE") != "BPE") refuse(where, "a model of type " + model["type"].dump() + ", not BPE");
  for (const char* option : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto value = model.value(option, json());
    if (!value.is_null() && value != "") refuse(where, fmt::format("{} {} is not served", option, value.dump()));
  }
  for (const char* option : {"byte_fallback", "ignore_merges"}) {
    if (model.value(option, false)) refuse(where, fmt::format("{} is not served", option));
  }
  const auto cuts = file.value("pre_tokenizer", json());
  if (!cuts.is_object() || cuts.value("type", "") != "ByteLevel" || !cuts.value("use_regex", true) ||
      cuts.value("add_prefix_space", true)) {
    refuse(where, "the pre-tokenizer must be ByteLevel, without a prefix space, not " + cuts.dump());
  }
  if (!file.value("normalizer", json()).is_null()) refuse(where, "a normalizer is not served");
}

}  // namespace

void Tokenizer::set_vocabulary(const std::vector<std::pair<std::string, std::int64_t>>& vocabulary,
                               const std::string& where) {
  for (const auto& [bytes, id] : vocabulary) {
    if (id < 0 || id >= (1 << 24)) refuse(where, fmt::format("id {} is out of range", id));
    if (id >= size()) bytes_.resize(static_cast<std::size_t>(id) + 1);
    bytes_[static_cast<std::size_t>(id)] = bytes;
    ids_[bytes] = static_cast<std::int32_t>(id);
  }
  for (int b = 0; b < 256; ++b) byte_ids_.push_back(id_of(std::string(1, static_cast<char>(b)), where));
}

std::int32_t Tokenizer::id_of(const std::string& token, const std::string& where) const {
  const auto found = ids_.find(token);
  if (found == ids_.end())
    refuse(where, "no id for the bytes " + json(token).dump(-1, ' ', true, json::error_handler_t::replace));
  return found->second;
}

void Tokenizer::add_merge(const std::string& left, const std::string& right, const std::string& where) {
  const auto a = bytes_of(left, where), b = bytes_of(right, where);
  const auto rank = static_cast<std::int32_t>(merges_.size());
  merges_.emplace(key_of(id_of(a, where), id_of(b, where)), Merge{rank, id_of(a + b, where)});
}

void Tokenizer::add_special(const std::string& text, std::int64_t id, const std::string& where) {
  if (text.empty() || id < 0 || id >= (1 << 24)) refuse(where, fmt::format("added token '{}' with id {}", text, id));
  if (id >= size()) bytes_.resize(static_cast<std::size_t>(id) + 1);
  bytes_[static_cast<std::size_t>(id)] = text;
  special_.emplace_back(text, static_cast<std::int32_t>(id));
  // Where two begin at one place, the longer one counts.
  std::sort(special_.begin(), special_.end(),
            [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
}

Tokenizer Tokenizer::from_json(const std::string& path) {
  const auto file = json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (file.is_discarded() || !file.contains("model") || !file["model"].contains("vocab") ||
      !file["model"].contains("merges")) {
    refuse(path, "is no tokenizer.json with a model of vocab and merges");
  }
  check_model(file, path);
  Tokenizer tokenizer;
  const auto added = file.value("added_tokens", json::array());
  std::vector<std::pair<std::string, std::int64_t>> vocabulary;
  for (const auto& [token, id] : file["model"]["vocab"].items()) {
    const bool special =
        std::any_of(added.begin(), added.end(), [&](const auto& a) { return a.at("content") == token; });
    if (!special) vocabulary.emplace_back(bytes_of(token, path), id.get<std::int64_t>());
  }
  tokenizer.set_vocabulary(vocabulary, path);
  for (const auto& merge : file["model"]["merges"]) {  // "a b", or ["a", "b"]
    if (merge.is_array()) {
      tokenizer.add_merge(merge.at(0), merge.at(1), path);
      continue;
    }
    const auto text = merge.get<std::string>();
    const auto space = text.find(' ');
    if (space == std::string::npos) refuse(path, "merge '" + text + "' is no pair");
    tokenizer.add_merge(text.substr(0, space), text.substr(space + 1), path);
  }
  for (const auto& token : added) {
    for (const char* option : {"single_word", "lstrip", "rstrip"}) {
      if (token.value(option, false)) refuse(path, fmt::format("added tokens with {} are not served", option));
    }
    tokenizer.add_special(token.at("content"), token.at("id").get<std::int64_t>(), path);
  }
  return tokenizer;
}

namespace {

using Merges = std::vector<std::pair<std::string, std::string>>;
using Vocabulary = std::vector<std::pair<std::string, std::int64_t>>;
constexpr const char* kEnd = "<|endoftext|>";

Merges read_merges(const std::string& path) {
  std::ifstream in(path);
  if (!in) refuse(path, "cannot be read");
  Merges merges;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.rfind("#version", 0) == 0) continue;
    const auto space = line.find(' ');
    if (space == std::string::npos) refuse(path, "line '" + line + "' is no pair");
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

// The id of the end of a text goes to `end`.
Vocabulary read_vocabulary(const std::string& path, std::int64_t& end) {
  const auto file = json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!file.is_object()) refuse(path, "is no map of tokens to ids");
  Vocabulary vocabulary;
  for (const auto& [token, id] : file.items()) {
    if (token == kEnd) {
      end = id.get<std::int64_t>();
    } else {
      vocabulary.emplace_back(bytes_of(token, path), id.get<std::int64_t>());
    }
  }
  return vocabulary;
}

// GPT-2's order: bytes that print, the others, merges, the end of a text.
Vocabulary usual_vocabulary(const Merges& merges, const std::string& path, std::int64_t& end) {
  Vocabulary vocabulary;
  const auto codes = printable_bytes();
  for (const bool prints : {true, false}) {
    for (std::uint32_t b = 0; b < 256; ++b) {
      if ((codes[b] < 256) == prints) vocabulary.emplace_back(std::string(1, static_cast<char>(b)), vocabulary.size());
    }
  }
  for (const auto& [a, b] : merges) vocabulary.emplace_back(bytes_of(a, path) + bytes_of(b, path), vocabulary.size());
  end = static_cast<std::int64_t>(vocabulary.size());
  return vocabulary;
}

}  // namespace

Tokenizer Tokenizer::from_merges(const std::string& path) {
  const auto merges = read_merges(path);
  const auto beside = fs::path(path).parent_path() / "vocab.json";
  std::int64_t end = -1;
  const bool known = fs::exists(beside);
  Tokenizer tokenizer;
  tokenizer.set_vocabulary(known ? read_vocabulary(beside.string(), end) : usual_vocabulary(merges, path, end), path);
  for (const auto& [a, b] : merges) tokenizer.add_merge(a, b, path);
  if (end >= 0) tokenizer.add_special(kEnd, end, path);
  return tokenizer;
}

Tokenizer Tokenizer::read(const std::string& path) {
  if (!fs::exists(path)) refuse(path, "no such file or folder");
  if (!fs::is_directory(path)) return fs::path(path).extension() == ".txt" ? from_merges(path) : from_json(path);
  if (fs::exists(fs::path(path) / "tokenizer.json")) return from_json((fs::path(path) / "tokenizer.json").string());
  if (fs::exists(fs::path(path) / "merges.txt")) return from_merges((fs::path(path) / "merges.txt").string());
  refuse(path, "holds neither tokenizer.json nor merges.txt");
}

std::string Tokenizer::shipped_path() { return DTENSOR_TRAIN_TOKENIZER; }

const Tokenizer::Ids& Tokenizer::encode_word(std::string_view word, std::unordered_map<std::string, Ids>& known) const {
  auto& ids = known[std::string(word)];
  if (!ids.empty()) return ids;
  for (const char c : word) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  while (true) {
    std::int32_t best = std::numeric_limits<std::int32_t>::max(), joined = 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto merge = merges_.find(key_of(ids[i], ids[i + 1]));
      if (merge == merges_.end() || merge->second.rank >= best) continue;
      best = merge->second.rank, joined = merge->second.result, at = i;
    }
    if (best == std::numeric_limits<std::int32_t>::max()) return ids;
    ids[at] = joined;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  Ids all;
  std::unordered_map<std::string, Ids> known;  // words come again and again
  while (!text.empty()) {
    std::size_t begin = text.size(), length = 0;
    std::int32_t id = -1;
    for (const auto& [special, its_id] : special_) {
      const auto at = text.find(special);
      if (at < begin) begin = at, length = special.size(), id = its_id;
    }
    for (const auto word : words_of(text.substr(0, begin))) {
      const auto& ids = encode_word(word, known);
      all.insert(all.end(), ids.begin(), ids.end());
    }
    if (id >= 0) all.push_back(id);
    text.remove_prefix(begin + length);
  }
  return all;
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids) const {
  std::string text;
  for (const auto id : ids) text += bytes_.at(static_cast<std::size_t>(id));
  return text;
}

}  // namespace train
