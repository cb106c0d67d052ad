// Tokenizers from their files.
#include "tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "input_file.h"
#include "tokenizer/unicode.h"

namespace tokenizer {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

json read_json(const std::string& path) {
  auto in = input_file::open<Error>("", path);
  auto value = json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) throw Error("expected a JSON object");
  return value;
}

}  // namespace

const Tokenizer::Added* Tokenizer::AddedTokens::find(std::string_view text, std::size_t from,
                                                     std::size_t& begin) const {
  for (begin = from; begin < text.size(); ++begin) {
    for (const Added& token : all[static_cast<unsigned char>(text[begin])]) {
      if (text.substr(begin, token.text.size()) == token.text) return &token;
    }
  }
  return nullptr;
}

void Tokenizer::set_token(const std::string& token, std::int64_t id) {
  if (id < 0 || id >= (1 << 24)) throw Error(fmt::format("expected an id in [0, 2^24) for '{1}', got {0}", id, token));
  if (id >= size()) tokens_.resize(static_cast<std::size_t>(id) + 1);
  tokens_[static_cast<std::size_t>(id)] = token;
}

void Tokenizer::add_token(const json& d) {
  const std::string text = d.at("content");
  const auto id = d.at("id").get<std::int64_t>();
  if (text.empty()) throw Error(fmt::format("expected non-empty content of the added token with id {}", id));
  if (d.value("single_word", false)) throw Error("added tokens with single_word are not supported");
  const bool special = d.value("special", false), normal = d.value("normalized", !special);
  set_token(text, id);
  if (special) special_.insert(static_cast<std::int32_t>(id));
  Added token{normal ? normalize_(text) : text, static_cast<std::int32_t>(id), d.value("lstrip", false),
              d.value("rstrip", false)};
  if (token.text.empty()) return;  // An empty text would be found everywhere.
  auto& all = (normal ? added_to_normal_ : added_).all[static_cast<unsigned char>(token.text[0])];
  const auto shorter = [&](const Added& other) { return other.text.size() < token.text.size(); };
  all.insert(std::find_if(all.begin(), all.end(), shorter), std::move(token));
}

void Tokenizer::read_template(const json& d) {
  if (d.is_null()) return;
  const std::string type = d.at("type");
  if (type == "ByteLevel") return;  // Affects offsets only, which this class does not return.
  if (type == "Sequence") {
    for (const json& part : d.at("processors")) read_template(part);
    return;
  }
  if (type != "TemplateProcessing") throw Error("post-processor of type " + type + " is not supported");
  bool behind = false;
  for (const json& item : d.at("single")) {
    behind = behind || item.contains("Sequence");
    if (!item.contains("SpecialToken")) continue;
    const std::string name = item.at("SpecialToken").at("id");
    const auto ids = d.at("special_tokens").at(name).at("ids").get<Ids>();
    auto& where = behind ? after_ : before_;
    where.insert(where.end(), ids.begin(), ids.end());
  }
}

Tokenizer::Tokenizer(const json& file)
    : normalize_(make_normalizer(file.value("normalizer", json()))),
      pre_tokenize_(make_pre_tokenizer(file.value("pre_tokenizer", json()))),
      model_(make_model(file.at("model"))),
      decode_(make_decoder(file.value("decoder", json()))) {
  for (const auto& [token, id] : model_->vocabulary()) set_token(token, id);
  for (const json& token : file.value("added_tokens", json::array())) add_token(token);
  read_template(file.value("post_processor", json()));
}

Tokenizer Tokenizer::read(const std::string& path) {
  try {
    if (!fs::exists(path)) throw Error("no such file or folder");
    if (!fs::is_directory(path))
      return Tokenizer(fs::path(path).extension() == ".txt" ? from_merges(path) : read_json(path));
  } catch (const Error& error) {
    throw Error(path + ": " + error.what());
  } catch (const json::exception& error) {
    throw Error(path + ": not a valid tokenizer.json: " + error.what());
  }
  for (const char* name : {"tokenizer.json", "merges.txt"}) {
    if (fs::exists(fs::path(path) / name)) return read((fs::path(path) / name).string());
  }
  throw Error(path + ": expected a folder with tokenizer.json or merges.txt");
}

// The tokenizer.json of GPT-2 with these merges.
json Tokenizer::from_merges(const std::string& path) {
  constexpr const char* kEnd = "<|endoftext|>";
  auto in = input_file::open<Error>("", path);
  json merges = json::array();
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
  }
  const auto beside = fs::path(path).parent_path() / "vocab.json";
  json vocabulary;
  if (fs::exists(beside)) {
    vocabulary = read_json(beside.string());
  } else {  // Printable bytes, other bytes, merges, the end-of-text token.
    std::vector<std::uint32_t> codes(printable_bytes().begin(), printable_bytes().end());
    std::sort(codes.begin(), codes.end());
    for (const std::uint32_t code : codes) {
      std::string token;
      append(token, code);
      vocabulary[token] = vocabulary.size();
    }
    for (const std::string text : merges) {
      const auto space = text.find(' ');
      if (space != std::string::npos) vocabulary[text.substr(0, space) + text.substr(space + 1)] = vocabulary.size();
    }
    vocabulary[kEnd] = vocabulary.size();
  }
  json file = {{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}},
               {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
               {"decoder", {{"type", "ByteLevel"}}}};
  if (vocabulary.contains(kEnd))
    file["added_tokens"] = {{{"content", kEnd}, {"id", vocabulary[kEnd]}, {"special", true}}};
  return file;
}

template <class Between>
void Tokenizer::cut_at(const AddedTokens& added, std::string_view text, Ids& ids, const Between& between) const {
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t begin = 0;
    const Added* token = added.find(text, at, begin);
    const std::size_t end = token == nullptr ? begin : begin + token->text.size();
    if (token != nullptr && token->takes_left) begin = begin_of_spaces(text, at, begin);
    if (begin > at) between(text.substr(at, begin - at), at == 0);
    if (token == nullptr) return;
    ids.push_back(token->id);
    at = token->takes_right ? end_of_spaces(text, end) : end;
  }
}

void Tokenizer::encode_between(std::string_view text, bool begins, Ids& ids,
                               std::unordered_map<std::string, Ids>& known) const {
  for (const Piece& piece : pre_tokenize_({std::string(text), begins})) {
    if (piece.text.empty()) continue;
    const auto [entry, first] = known.try_emplace(piece.text);
    if (first) entry->second = model_->encode(piece.text);
    ids.insert(ids.end(), entry->second.begin(), entry->second.end());
  }
}

Ids Tokenizer::encode(std::string_view text, bool frame) const {
  Ids ids = frame ? before_ : Ids();
  std::unordered_map<std::string, Ids> known;  // Cache, since words repeat.
  cut_at(added_, text, ids, [&](std::string_view part, bool begins) {
    const std::string normal = normalize_(std::string(part));
    cut_at(added_to_normal_, normal, ids,
           [&](std::string_view rest, bool first) { encode_between(rest, begins && first, ids, known); });
  });
  if (frame) ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

std::string Tokenizer::decode(const Ids& ids, bool with_special) const {
  Tokens tokens;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= size() || (!with_special && special_.contains(id))) continue;
    tokens.push_back(tokens_[static_cast<std::size_t>(id)]);
  }
  std::string text;
  for (const auto& part : decode_(std::move(tokens))) text += part;
  return text;
}

}  // namespace tokenizer
