// Models that encode one piece of text: byte-pair encoding, or the most likely segmentation (Unigram).
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>
#include <vector>

namespace tokenizer {

using Ids = std::vector<std::int32_t>;
using TokenIds = std::unordered_map<std::string, std::int32_t>;

class Model {
 public:
  Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  virtual ~Model() = default;

  virtual Ids encode(const std::string& piece) const = 0;
  const TokenIds& vocabulary() const { return ids_; }

 protected:
  // Throws Error for an id that is out of range.
  void add(const std::string& token, std::int64_t id);
  std::int32_t id_of(const std::string& token) const;  // Throws Error if the token is missing.
  std::int32_t find(const std::string& token) const;   // -1: none.
  // Appends the tokens <0x00> .. of all bytes. Returns false if one of them is missing.
  bool append_bytes(const std::string& text, Ids& ids) const;

 private:
  TokenIds ids_;
};

// The `model` of a tokenizer.json. Throws Error for unsupported models.
std::unique_ptr<Model> make_model(const nlohmann::json& description);
std::unique_ptr<Model> make_bpe(const nlohmann::json& description);
std::unique_ptr<Model> make_unigram(const nlohmann::json& description);

}  // namespace tokenizer
