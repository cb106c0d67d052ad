// Texts as token ids and back, from the files of Hugging Face's tokenizers: the same ids as the Python package.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tokenizer/decoder.h"
#include "tokenizer/error.h"
#include "tokenizer/model.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace tokenizer {

class Tokenizer {
 public:
  // Reads a tokenizer.json, a merges.txt with vocab.json in its folder, or a folder with either. Without vocab.json,
  // ids are GPT-2's: bytes, merges, <|endoftext|>. Throws Error with file and reason if the file cannot be read or is
  // not supported.
  static Tokenizer read(const std::string& path);

  // Encodes any bytes; those that are not valid UTF-8 are separate characters. With `frame`, adds the tokens that the
  // file puts around a text (TemplateProcessing).
  Ids encode(std::string_view text, bool frame = false) const;
  // Skips ids without a token and, unless `with_special`, special tokens.
  std::string decode(const Ids& ids, bool with_special = true) const;
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }  // Ids are below this.

 private:
  struct Added {
    std::string text;
    std::int32_t id;
    bool takes_left, takes_right;  // Adjacent white space.
  };
  // Sorted by first byte, longest first. find() returns the longest of the tokens with the earliest begin.
  struct AddedTokens {
    std::array<std::vector<Added>, 256> all;
    const Added* find(std::string_view text, std::size_t from, std::size_t& begin) const;
  };

  explicit Tokenizer(const nlohmann::json& file);
  static nlohmann::json from_merges(const std::string& path);
  void add_token(const nlohmann::json& description);
  void read_template(const nlohmann::json& post_processor);
  void set_token(const std::string& token, std::int64_t id);
  void encode_between(std::string_view text, bool begins, Ids& ids, std::unordered_map<std::string, Ids>& known) const;
  template <class Between>
  void cut_at(const AddedTokens& added, std::string_view text, Ids& ids, const Between& between) const;

  std::vector<std::string> tokens_;  // By id.
  std::unordered_set<std::int32_t> special_;
  AddedTokens added_, added_to_normal_;  // Found in the original text; found in the normalized text.
  Normalizer normalize_;
  PreTokenizer pre_tokenize_;
  std::shared_ptr<const Model> model_;
  Decoder decode_;
  Ids before_, after_;  // The tokens of `frame`.
};

}  // namespace tokenizer
