// A wrapper of Oniguruma.
#include "tokenizer/regex.h"

#include <oniguruma.h>

#include <limits>

#include "tokenizer/error.h"
#include "tokenizer/unicode.h"

namespace tokenizer {
namespace {

const UChar* bytes_of(const std::string& text) { return reinterpret_cast<const UChar*>(text.data()); }

[[noreturn]] void fail(const std::string& pattern, int code, OnigErrorInfo* info = nullptr) {
  UChar reason[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length =
      info != nullptr ? onig_error_code_to_str(reason, code, info) : onig_error_code_to_str(reason, code);
  throw Error("regular expression '" + pattern + "' is invalid (Oniguruma): " +
              std::string(reinterpret_cast<const char*>(reason), static_cast<std::size_t>(length)));
}

// Oniguruma reads out of bounds after invalid UTF-8. The replacement has one byte as well, so positions stay.
std::string valid_utf8(std::string_view text) {
  constexpr char kSubstitute = '\x1a';
  std::string valid(text);
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    if (c.code >= kInvalidByte) valid[at] = kSubstitute;
    at = c.end;
  }
  return valid;
}

}  // namespace

Regex::Regex(const std::string& pattern) : pattern_(pattern) {
  OnigEncoding encoding = ONIG_ENCODING_UTF8;
  static const int initialized = onig_initialize(&encoding, 1);
  if (initialized != ONIG_NORMAL) fail(pattern, initialized);
  regex_t* compiled = nullptr;
  OnigErrorInfo info;
  const UChar* begin = bytes_of(pattern_);
  const int code = onig_new(&compiled, begin, begin + pattern_.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                            ONIG_SYNTAX_DEFAULT, &info);
  if (code != ONIG_NORMAL) fail(pattern, code, &info);
  compiled_.reset(compiled, onig_free);
}

std::vector<std::pair<std::size_t, std::size_t>> Regex::find_all(std::string_view text) const {
  constexpr std::size_t kMost = std::numeric_limits<int>::max();
  if (text.size() > kMost) {
    throw Error("expected a text of at most " + std::to_string(kMost) + " bytes for a regular expression, got " +
                std::to_string(text.size()) + "; split the file");
  }
  const std::string valid = valid_utf8(text);
  const UChar *begin = bytes_of(valid), *end = begin + valid.size();
  const auto free_region = [](OnigRegion* region) { onig_region_free(region, 1); };
  const std::unique_ptr<OnigRegion, decltype(free_region)> region(onig_region_new(), free_region);
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (std::size_t at = 0; at < valid.size();) {
    const int first = onig_search(compiled_.get(), begin, end, begin + at, end, region.get(), ONIG_OPTION_NONE);
    if (first == ONIG_MISMATCH) break;
    if (first < 0) fail(pattern_, first);
    const auto match = std::pair(static_cast<std::size_t>(first), static_cast<std::size_t>(region->end[0]));
    at = match.second;
    if (match.second > match.first) {
      found.push_back(match);
    } else if (at < valid.size()) {
      at = character_at(valid, at).end;
    }
  }
  return found;
}

}  // namespace tokenizer
