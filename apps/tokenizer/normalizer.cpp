// Normalizers as functions.
#include "tokenizer/normalizer.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "tokenizer/error.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace tokenizer {
namespace {

using nlohmann::json;

std::string replace_all(const std::string& text, const std::string& old, const std::string& by) {
  std::string result;
  std::size_t at = 0;
  for (auto found = text.find(old); found != std::string::npos; found = text.find(old, at)) {
    result.append(text, at, found - at).append(by);
    at = found + old.size();
  }
  return result.append(text, at);
}

std::string replace_all(const std::string& text, const Regex& regex, const std::string& by) {
  std::string result;
  std::size_t at = 0;
  for (const auto& [begin, end] : regex.find_all(text)) {
    result.append(text, at, begin - at).append(by);
    at = end;
  }
  return result.append(text, at);
}

std::string stripped(const std::string& text, bool left, bool right) {
  const std::size_t begin = left ? end_of_spaces(text, 0) : 0;
  const std::size_t end = right ? begin_of_spaces(text, begin, text.size()) : text.size();
  return text.substr(begin, end - begin);
}

}  // namespace

Normalizer make_replacement(const json& d) {
  const std::string by = d.at("content");
  const json& pattern = d.at("pattern");
  if (pattern.contains("Regex")) {
    auto regex = std::make_shared<const Regex>(pattern.at("Regex").get<std::string>());
    return [regex, by](const std::string& text) { return replace_all(text, *regex, by); };
  }
  const std::string old = pattern.at("String");
  if (old.empty()) throw Error("Replace: expected a non-empty pattern");
  return [old, by](const std::string& text) { return replace_all(text, old, by); };
}

Normalizer make_normalizer(const json& d) {
  if (d.is_null()) return [](std::string text) { return text; };
  const std::string type = d.at("type");
  if (type == "NFC") return [](const std::string& text) { return composed(text); };
  if (type == "NFD") return [](const std::string& text) { return decomposed(text); };
  if (type == "Replace") return make_replacement(d);
  if (type == "Prepend") {
    return
        [prefix = d.at("prepend").get<std::string>()](std::string text) { return text.empty() ? text : prefix + text; };
  }
  if (type == "Strip") {
    return [left = d.value("strip_left", true), right = d.value("strip_right", true)](const std::string& text) {
      return stripped(text, left, right);
    };
  }
  if (type != "Sequence") throw Error("normalizer of type " + type + " is not supported");
  std::vector<Normalizer> all;
  for (const json& part : d.at("normalizers")) all.push_back(make_normalizer(part));
  return [all](std::string text) {
    for (const auto& part : all) text = part(std::move(text));
    return text;
  };
}

}  // namespace tokenizer
