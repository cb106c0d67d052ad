// Decodes a window of tokens, and removes the text that was returned before.
#include "llm/text/text_stream.h"

#include <algorithm>

namespace llm {
namespace {

bool ends_within_character(const std::string& text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return false;
    if (byte >= 0xC0) return back < (byte >= 0xF0 ? 4u : byte >= 0xE0 ? 3u : 2u);
  }
  return false;
}

}  // namespace

TextStream::TextStream(const tokenizer::Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt)
    : tokenizer_(tokenizer), window_(prompt.begin(), prompt.end()), emitted_(prompt.size()) {}

std::string TextStream::add(std::int64_t token) {
  window_.push_back(static_cast<std::int32_t>(token));
  return take(/*only_full=*/true);
}

std::string TextStream::finish() { return take(/*only_full=*/false); }

std::string TextStream::take(bool only_full) {
  const auto end_of_reported = window_.begin() + static_cast<std::ptrdiff_t>(emitted_);
  const std::string before = tokenizer_.decode({window_.begin(), end_of_reported}, /*with_special=*/false);
  const std::string all = tokenizer_.decode(window_, /*with_special=*/false);
  if (all.size() <= before.size() || (only_full && ends_within_character(all))) return "";
  window_.erase(window_.begin(), end_of_reported);
  emitted_ = window_.size();
  return all.substr(before.size());
}

}  // namespace llm
