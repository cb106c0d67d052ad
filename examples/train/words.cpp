// The regular expression of GPT-2 as a scanner over code points.
#include "words.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

namespace train {
namespace {

struct Range {
  std::uint32_t first, last;
};

#include "unicode_classes.inl"

template <std::size_t n>
bool is_in(const Range (&table)[n], std::uint32_t code) {
  const auto after =
      std::upper_bound(std::begin(table), std::end(table), code, [](auto c, const Range& r) { return c < r.first; });
  return after != std::begin(table) && code <= std::prev(after)->last;
}

enum class Class : std::uint8_t { letter, number, space, other };

Class class_of(std::uint32_t code) {
  if (code < 0x80) {
    if (code == ' ' || (code >= 9 && code <= 13)) return Class::space;
    if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z') return Class::letter;
    return code >= '0' && code <= '9' ? Class::number : Class::other;
  }
  if (is_in(kSpaces, code)) return Class::space;
  if (is_in(kLetters, code)) return Class::letter;
  return is_in(kNumbers, code) ? Class::number : Class::other;
}

struct Character {
  Class kind;
  std::size_t end;  // where the next one begins
};

// One byte of class `other` where the text is no UTF-8.
Character character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const auto lead = byte(at);
  if (lead < 0x80) return {class_of(lead), at + 1};
  const std::size_t more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC2 ? 1 : 0;
  if (more == 0 || lead > 0xF4 || at + more >= text.size()) return {Class::other, at + 1};
  std::uint32_t code = lead & (0x3Fu >> more);
  for (std::size_t i = 1; i <= more; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return {Class::other, at + 1};
    code = code << 6 | (byte(at + i) & 0x3F);
  }
  return {class_of(code), at + more + 1};
}

std::size_t end_of_run(std::string_view text, std::size_t at, Class kind) {
  while (at < text.size()) {
    const auto c = character_at(text, at);
    if (c.kind != kind) break;
    at = c.end;
  }
  return at;
}

std::size_t contraction_at(std::string_view text, std::size_t at) {
  constexpr std::array<std::string_view, 7> kEndings = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
  for (const auto ending : kEndings) {
    if (text.substr(at, ending.size()) == ending) return at + ending.size();
  }
  return at;
}

// Spaces up to the last one, which belongs to the word behind if it is " "; all of them at the end of the text.
std::size_t end_of_spaces(std::string_view text, std::size_t at) {
  const auto end = end_of_run(text, at, Class::space);
  if (end == text.size()) return end;
  std::size_t last = at;
  for (std::size_t i = at; i < end; i = character_at(text, i).end) last = i;
  return last > at ? last : end;
}

std::size_t end_of_word(std::string_view text, std::size_t at) {
  if (const auto end = contraction_at(text, at); end > at) return end;
  const auto first = character_at(text, at);
  if (first.kind != Class::space) return end_of_run(text, at, first.kind);
  if (text[at] == ' ' && at + 1 < text.size()) {
    const auto second = character_at(text, at + 1);
    if (second.kind != Class::space) return end_of_run(text, at + 1, second.kind);
  }
  return end_of_spaces(text, at);
}

}  // namespace

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = end_of_word(text, at);
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

}  // namespace train
