// Characters of a text and canonical normalization, by utf8proc. Bytes that are no UTF-8 are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokenizer {

// A byte that is part of no UTF-8 counts as a character of its own: this much more than its value.
constexpr std::uint32_t kInvalidByte = 0x110000;

struct Character {
  std::uint32_t code;
  std::size_t end;  // where the next one begins
};
Character character_at(std::string_view text, std::size_t at);
std::vector<std::uint32_t> codes_of(std::string_view text);
void append(std::string& text, std::uint32_t code);

// White_Space of Unicode: where a run of it that begins at `at` ends, and where one that ends at `end` begins, at
// `from` at the earliest.
std::size_t end_of_spaces(std::string_view text, std::size_t at);
std::size_t begin_of_spaces(std::string_view text, std::size_t from, std::size_t end);

std::string decomposed(std::string_view text);  // NFD
std::string composed(std::string_view text);    // NFC

}  // namespace tokenizer
