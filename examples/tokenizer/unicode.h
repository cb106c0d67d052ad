// Characters of a text, their general categories, and canonical normalisation (Unicode, UAX #15).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokenizer {

// In the order of unicode_categories.inl, which tools/tokenizer/make_tables.py writes.
constexpr const char* kCategoryNames[] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                          "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                          "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

// One bit a category. A byte that is no UTF-8 is of none.
std::uint32_t category_bit(std::uint32_t code);
// Of `L`, `Lu`, `N`: all bits whose name begins so. 0: there is no such category.
std::uint32_t category_mask(std::string_view name);

// A byte that is part of no UTF-8 counts as a character of its own: this much more than its value.
constexpr std::uint32_t kStrayByte = 0x110000;

struct Character {
  std::uint32_t code;
  std::size_t end;  // where the next one begins
};
Character character_at(std::string_view text, std::size_t at);
std::vector<std::uint32_t> codes_of(std::string_view text);
void append(std::string& text, std::uint32_t code);

std::string decomposed(std::string_view text);  // NFD
std::string composed(std::string_view text);    // NFC

}  // namespace tokenizer
