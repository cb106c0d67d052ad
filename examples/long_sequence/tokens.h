// Parses a sequence length of the command line.
#pragma once

#include <cstdint>
#include <string_view>

namespace long_sequence {

constexpr std::int64_t kFewest = 8, kMost = std::int64_t{1} << 24;  // An eighth of the length is measured too.

// Returns 0 for an invalid length.
std::int64_t tokens_of(std::string_view text);

}  // namespace long_sequence
