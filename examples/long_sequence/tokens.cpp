// Parses a sequence length of the command line.
#include "tokens.h"

#include <charconv>

namespace long_sequence {

std::int64_t tokens_of(std::string_view text) {
  std::int64_t tokens = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tokens);
  const bool full = error == std::errc() && end == text.data() + text.size();
  return full && tokens >= kFewest && tokens <= kMost ? tokens : 0;
}

}  // namespace long_sequence
