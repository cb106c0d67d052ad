// Characters of a text and canonical normalization, with utf8proc. Bytes that are not valid UTF-8 are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokenizer {

// A byte that is not part of valid UTF-8 is a separate character with this offset added to its value.
constexpr std::uint32_t kInvalidByte = 0x110000;

struct Character {
  std::uint32_t code;
  std::size_t end;  // Where the next character begins.
};
Character character_at(std::string_view text, std::size_t at);
std::vector<std::uint32_t> codes_of(std::string_view text);
void append(std::string& text, std::uint32_t code);

// White_Space of Unicode. end_of_spaces: the end of the run that begins at `at`. begin_of_spaces: the begin of the run
// that ends at `end`, at least `from`.
std::size_t end_of_spaces(std::string_view text, std::size_t at);
std::size_t begin_of_spaces(std::string_view text, std::size_t from, std::size_t end);

std::string decomposed(std::string_view text);  // NFD.
std::string composed(std::string_view text);    // NFC.

}  // namespace tokenizer
