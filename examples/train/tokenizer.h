// Byte-pair encoding as GPT-2's: a text is cut into words, each word's bytes are joined pair by pair, the pair that was
// learnt first at first. Reads the files of Hugging Face's tokenizers; gives the same tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace train {

class Tokenizer {
 public:
  // A tokenizer.json (model BPE, pre-tokenizer ByteLevel), or a merges.txt with the vocab.json beside it (without one,
  // ids are GPT-2's: bytes, then merges, then <|endoftext|>), or a folder with either. Throws UsageError, naming file
  // and reason, for what cannot be read or asks for something else.
  static Tokenizer read(const std::string& path);
  // The one in examples/train/tokenizer.json, trained on LibTorch's headers (tools/tokenizer/make.py).
  static Tokenizer shipped() { return read(shipped_path()); }
  static std::string shipped_path();

  // Any bytes; those that are no UTF-8 count as characters that are neither letters nor numbers nor spaces.
  std::vector<std::int32_t> encode(std::string_view text) const;
  std::string decode(const std::vector<std::int32_t>& ids) const;
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()); }  // ids are below

 private:
  using Ids = std::vector<std::int32_t>;
  struct Merge {
    std::int32_t rank, result;
  };

  void set_vocabulary(const std::vector<std::pair<std::string, std::int64_t>>& vocabulary, const std::string& where);
  void add_merge(const std::string& left, const std::string& right, const std::string& where);
  void add_special(const std::string& text, std::int64_t id, const std::string& where);
  std::int32_t id_of(const std::string& token, const std::string& where) const;
  static Tokenizer from_json(const std::string& path);
  static Tokenizer from_merges(const std::string& path);
  const Ids& encode_word(std::string_view word, std::unordered_map<std::string, Ids>& known) const;

  std::vector<std::string> bytes_;                             // of each id
  std::unordered_map<std::string, std::int32_t> ids_;          // of each token, by its bytes
  std::vector<std::int32_t> byte_ids_;                         // of each single byte
  std::unordered_map<std::uint64_t, Merge> merges_;            // by left << 32 | right
  std::vector<std::pair<std::string, std::int32_t>> special_;  // found in a text before it is cut into words
};

}  // namespace train
