// utf8proc, and bytes that it refuses.
#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "tokenizer/error.h"

namespace tokenizer {
namespace {

const utf8proc_uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

std::string mapped(std::string_view valid, int form) {
  utf8proc_uint8_t* made = nullptr;
  const auto length = utf8proc_map(bytes_of(valid), static_cast<utf8proc_ssize_t>(valid.size()), &made,
                                   static_cast<utf8proc_option_t>(form | UTF8PROC_STABLE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, std::free);
  if (length < 0) throw Error(std::string("cannot normalize a text: ") + utf8proc_errmsg(length));
  return {reinterpret_cast<const char*>(made), static_cast<std::size_t>(length)};
}

std::size_t end_of_valid(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const Character c = character_at(text, at);
    if (c.code >= kInvalidByte) break;
    at = c.end;
  }
  return at;
}

std::string normalized(std::string_view text, int form) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = end_of_valid(text, at);
    if (end > at) result += mapped(text.substr(at, end - at), form);
    if (end < text.size()) result.push_back(text[end]);
    at = end + 1;
  }
  return result;
}

// Characters before U+0300 are composed.
bool is_composed(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

bool is_space(std::uint32_t code) {
  if ((code >= '\t' && code <= '\r') || code == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

}  // namespace

Character character_at(std::string_view text, std::size_t at) {
  const auto lead = static_cast<std::uint32_t>(static_cast<unsigned char>(text[at]));
  if (lead < 0x80) return {lead, at + 1};
  utf8proc_int32_t code = 0;
  const auto length = utf8proc_iterate(bytes_of(text) + at, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  if (length <= 0) return {kInvalidByte + lead, at + 1};
  return {static_cast<std::uint32_t>(code), at + static_cast<std::size_t>(length)};
}

std::vector<std::uint32_t> codes_of(std::string_view text) {
  std::vector<std::uint32_t> codes;
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    codes.push_back(c.code);
    at = c.end;
  }
  return codes;
}

void append(std::string& text, std::uint32_t code) {
  if (code >= kInvalidByte) {
    text.push_back(static_cast<char>(static_cast<unsigned char>(code - kInvalidByte)));
    return;
  }
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

std::size_t end_of_spaces(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const Character c = character_at(text, at);
    if (!is_space(c.code)) break;
    at = c.end;
  }
  return at;
}

std::size_t begin_of_spaces(std::string_view text, std::size_t from, std::size_t end) {
  std::size_t begin = end;
  for (std::size_t at = from; at < end;) {
    const Character c = character_at(text, at);
    begin = !is_space(c.code) ? end : std::min(begin, at);
    at = c.end;
  }
  return begin;
}

std::string decomposed(std::string_view text) { return normalized(text, UTF8PROC_DECOMPOSE); }

std::string composed(std::string_view text) {
  return is_composed(text) ? std::string(text) : normalized(text, UTF8PROC_COMPOSE);
}

}  // namespace tokenizer
