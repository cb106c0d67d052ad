// Decoders as functions.
#include "tokenizer/decoder.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "tokenizer/error.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/unicode.h"

namespace tokenizer {
namespace {

using nlohmann::json;

// The bytes that a token's characters represent. An added token with other characters represents itself.
std::string from_printable(const std::string& token) {
  static const auto bytes = [] {
    std::unordered_map<std::uint32_t, char> table;
    for (std::size_t b = 0; b < 256; ++b) table[printable_bytes()[b]] = static_cast<char>(b);
    return table;
  }();
  std::string result;
  for (const std::uint32_t code : codes_of(token)) {
    const auto byte = bytes.find(code);
    if (byte == bytes.end()) return token;
    result.push_back(byte->second);
  }
  return result;
}

std::string from_byte_token(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return token;
  unsigned value = 0;
  const auto end = token.data() + 5;
  return std::from_chars(token.data() + 3, end, value, 16).ptr == end ? std::string(1, static_cast<char>(value))
                                                                      : token;
}

std::string fused(const Tokens& tokens) {
  std::string text;
  for (const auto& token : tokens) text += token;
  return text;
}

template <class Function>
Decoder on_each(Function function) {
  return [function](Tokens tokens) {
    for (auto& token : tokens) token = function(token);
    return tokens;
  };
}

std::string without_ends(std::string token, const std::string& content, int start, int stop) {
  for (int i = 0; i < start && token.starts_with(content); ++i) token.erase(0, content.size());
  for (int i = 0; i < stop && token.ends_with(content); ++i) token.erase(token.size() - content.size());
  return token;
}

// A leading marker of the first token is not a space if the pre-tokenizer added it.
Decoder make_metaspace_decoder(const json& d) {
  const std::string mark = d.value("replacement", "\u2581");
  const auto replace = [mark](const std::string& by) {
    return make_replacement({{"pattern", {{"String", mark}}}, {"content", by}});
  };
  const bool prepended = d.value("prepend_scheme", d.value("add_prefix_space", true) ? "always" : "never") != "never";
  return [prepended, drop = replace(""), space = replace(" ")](Tokens tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = (i == 0 && prepended ? drop : space)(tokens[i]);
    return tokens;
  };
}

}  // namespace

Decoder make_decoder(const json& d) {
  if (d.is_null()) {
    return [](Tokens tokens) {
      for (std::size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(tokens[i].begin(), ' ');
      return tokens;
    };
  }
  const std::string type = d.at("type");
  if (type == "ByteLevel") return on_each(from_printable);
  if (type == "ByteFallback") return on_each(from_byte_token);
  if (type == "Replace") return on_each(make_replacement(d));
  if (type == "Metaspace") return make_metaspace_decoder(d);
  if (type == "Fuse") return [](const Tokens& tokens) { return Tokens{fused(tokens)}; };
  if (type == "Strip") {
    const std::string content = d.at("content");
    if (content.empty()) throw Error("Strip: expected non-empty content");
    return on_each([content, start = d.at("start").get<int>(), stop = d.at("stop").get<int>()](
                       const std::string& token) { return without_ends(token, content, start, stop); });
  }
  if (type != "Sequence") throw Error("decoder of type " + type + " is not supported");
  std::vector<Decoder> all;
  for (const json& part : d.at("decoders")) all.push_back(make_decoder(part));
  return [all](Tokens tokens) {
    for (const auto& part : all) tokens = part(std::move(tokens));
    return tokens;
  };
}

}  // namespace tokenizer
