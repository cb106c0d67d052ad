// Texts as token ids and back, by the files of Hugging Face's tokenizers: the same ids as the Python package gives.
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
  // A tokenizer.json, or a merges.txt with the vocab.json beside it (without one, ids are GPT-2's: bytes, then merges,
  // then <|endoftext|>), or a folder with either. Throws Error, naming file and reason, for what cannot be read or asks
  // for what is not served.
  static Tokenizer read(const std::string& path);

  // Any bytes; those that are no UTF-8 are characters of their own. With `frame`, what the file puts around a text
  // (TemplateProcessing: a token that begins it, one that ends it) is there too.
  Ids encode(std::string_view text, bool frame = false) const;
  // Ids that have no token are passed over, as are special tokens unless they are asked for.
  std::string decode(const Ids& ids, bool with_special = true) const;
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }  // ids are below

 private:
  struct Added {
    std::string text;
    std::int32_t id;
    bool takes_left, takes_right;  // the white space beside it
  };
  // By their first bytes, the longest first. Found is the longest of those that begin first.
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

  std::vector<std::string> tokens_;  // of each id
  std::unordered_set<std::int32_t> special_;
  AddedTokens added_, added_to_normal_;  // found in the text as it is; found when it is normal
  Normalizer normalize_;
  PreTokenizer pre_tokenize_;
  std::shared_ptr<const Model> model_;
  Decoder decode_;
  Ids before_, after_;  // the frame
};

}  // namespace tokenizer
