// Code that all models share.
#include "tokenizer/model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tokenizer/error.h"

namespace tokenizer {

void Model::add(const std::string& token, std::int64_t id) {
  if (id < 0 || id >= (1 << 24)) throw Error(fmt::format("expected an id in [0, 2^24) for '{1}', got {0}", id, token));
  ids_[token] = static_cast<std::int32_t>(id);
}

std::int32_t Model::find(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

std::int32_t Model::id_of(const std::string& token) const {
  const std::int32_t id = find(token);
  if (id < 0) throw Error("expected the token '" + token + "' in the vocabulary");
  return id;
}

bool Model::append_bytes(const std::string& text, Ids& ids) const {
  Ids found;
  for (const char c : text) {
    found.push_back(find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(c))));
    if (found.back() < 0) return false;
  }
  ids.insert(ids.end(), found.begin(), found.end());
  return true;
}

std::unique_ptr<Model> make_model(const nlohmann::json& d) {
  const bool scores = d.at("vocab").is_array();  // Old files have no type.
  const std::string type = d.value("type", scores ? "Unigram" : "BPE");
  if (type == "Unigram") return make_unigram(d);
  if (type != "BPE") throw Error("model of type " + type + " is not supported, only BPE and Unigram");
  return make_bpe(d);
}

}  // namespace tokenizer
