// Look-ups in tables, and the algorithms of UAX #15.
#include "tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

namespace tokenizer {
namespace {

struct Run {
  std::uint32_t first;
  std::uint8_t category;
};
struct Decomposition {
  std::uint32_t code, first, second;  // second 0: a single character in the place of another
  bool composes;
};
struct CombiningRun {
  std::uint32_t first, last;
  std::uint8_t value;
};

#include "tokenizer/unicode_categories.inl"
#include "tokenizer/unicode_decompositions.inl"

// The last entry that does not begin behind `code`.
template <class Entry, std::size_t n, class Member>
const Entry* entry_before(const Entry (&table)[n], std::uint32_t code, Member begin) {
  const auto after = std::upper_bound(std::begin(table), std::end(table), code,
                                      [&](std::uint32_t c, const Entry& entry) { return c < entry.*begin; });
  return after == std::begin(table) ? nullptr : &*std::prev(after);
}

std::uint8_t combining_class(std::uint32_t code) {
  const CombiningRun* run = code < 0x300 ? nullptr : entry_before(kCombiningRuns, code, &CombiningRun::first);
  return run != nullptr && code <= run->last ? run->value : 0;
}

constexpr std::uint32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr std::uint32_t kVowelCount = 21, kTailCount = 28, kSyllableCount = 19 * kVowelCount * kTailCount;

void append_decomposed(std::uint32_t code, std::vector<std::uint32_t>& codes) {
  if (code >= kSyllables && code < kSyllables + kSyllableCount) {
    const std::uint32_t index = code - kSyllables, tail = index % kTailCount;
    codes.push_back(kLeads + index / (kVowelCount * kTailCount));
    codes.push_back(kVowels + index / kTailCount % kVowelCount);
    if (tail != 0) codes.push_back(kTails + tail);
    return;
  }
  const Decomposition* entry = entry_before(kDecompositions, code, &Decomposition::code);
  if (entry == nullptr || entry->code != code) return codes.push_back(code);
  append_decomposed(entry->first, codes);
  if (entry->second != 0) append_decomposed(entry->second, codes);
}

std::vector<std::uint32_t> decomposed_codes(std::string_view text) {
  std::vector<std::uint32_t> codes;
  for (const std::uint32_t code : codes_of(text)) append_decomposed(code, codes);
  for (auto begin = codes.begin(); begin != codes.end();) {  // runs of marks, by class
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, codes.end(), [](std::uint32_t c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
  return codes;
}

// 0: they do not make one character.
std::uint32_t composition(std::uint32_t first, std::uint32_t second) {
  if (first >= kLeads && first < kLeads + 19 && second >= kVowels && second < kVowels + kVowelCount)
    return kSyllables + ((first - kLeads) * kVowelCount + second - kVowels) * kTailCount;
  const bool open =
      first >= kSyllables && first < kSyllables + kSyllableCount && (first - kSyllables) % kTailCount == 0;
  if (open && second > kTails && second < kTails + kTailCount) return first + second - kTails;
  static const auto pairs = [] {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> made;
    for (const Decomposition& d : kDecompositions) {
      if (d.composes) made.emplace(std::pair(d.first, d.second), d.code);
    }
    return made;
  }();
  const auto found = pairs.find({first, second});
  return found == pairs.end() ? 0 : found->second;
}

std::string text_of(const std::vector<std::uint32_t>& codes) {
  std::string text;
  for (const std::uint32_t code : codes) append(text, code);
  return text;
}

// Everything before U+0300 is normal already, in both forms of it that are composed.
bool is_composed(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

}  // namespace

std::uint32_t category_bit(std::uint32_t code) {
  if (code >= kStrayByte) return 0;
  static const auto ascii = [] {
    std::array<std::uint32_t, 128> bits{};
    for (std::uint32_t c = 0; c < 128; ++c) bits[c] = 1u << entry_before(kCategoryRuns, c, &Run::first)->category;
    return bits;
  }();
  return code < 128 ? ascii[code] : 1u << entry_before(kCategoryRuns, code, &Run::first)->category;
}

std::uint32_t category_mask(std::string_view name) {
  std::uint32_t mask = 0;
  for (std::size_t i = 0; i < std::size(kCategoryNames); ++i) {
    if (!name.empty() && std::string_view(kCategoryNames[i]).substr(0, name.size()) == name) mask |= 1u << i;
  }
  return mask;
}

Character character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const auto lead = byte(at);
  if (lead < 0x80) return {lead, at + 1};
  const Character stray{kStrayByte + lead, at + 1};
  const std::size_t more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC2 ? 1 : 0;
  if (more == 0 || lead > 0xF4 || at + more >= text.size()) return stray;
  std::uint32_t code = lead & (0x3Fu >> more);
  for (std::size_t i = 1; i <= more; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return stray;
    code = code << 6 | (byte(at + i) & 0x3F);
  }
  const bool too_long = (more == 2 && code < 0x800) || (more == 3 && code < 0x10000);
  if (too_long || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return stray;
  return {code, at + more + 1};
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
  const auto put = [&](std::uint32_t byte) { text.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  const auto put_rest = [&](int shift) { put(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) return put(code);
  if (code >= kStrayByte) return put(code - kStrayByte);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put_rest(6);
  } else {
    put(0xF0 | code >> 18), put_rest(12), put_rest(6);
  }
  put_rest(0);
}

std::string decomposed(std::string_view text) { return text_of(decomposed_codes(text)); }

std::string composed(std::string_view text) {
  if (is_composed(text)) return std::string(text);
  std::vector<std::uint32_t> codes;
  std::size_t starter = std::string::npos;
  std::uint8_t last = 0;  // the class of the mark before, after the starter
  for (const std::uint32_t code : decomposed_codes(text)) {
    const std::uint8_t own = combining_class(code);
    const bool beside = starter != std::string::npos && starter + 1 == codes.size();
    if (starter != std::string::npos && (beside || (last != 0 && last < own))) {
      const std::uint32_t joined = composition(codes[starter], code);
      if (joined != 0) {
        codes[starter] = joined;
        continue;
      }
    }
    codes.push_back(code);
    last = own;
    if (own == 0) starter = codes.size() - 1;
  }
  return text_of(codes);
}

}  // namespace tokenizer
