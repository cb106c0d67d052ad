// The length of a sequence as it is given on a command line.
#pragma once

#include <cstdint>
#include <string_view>

namespace long_sequence {

constexpr std::int64_t kFewest = 8, kMost = std::int64_t{1} << 24;  // an eighth of them is measured, too

// 0: no such number.
std::int64_t tokens_of(std::string_view text);

}  // namespace long_sequence
