// What splitting a sequence over ranks buys: peak memory of a rank and seconds of a forward and backward pass through
// transformer blocks, against the length of the sequence, on 1, 2 and 4 thread ranks.
#include <charconv>
#include <cstdio>
#include <string_view>

#include "cost.h"
#include "dtensor/launch.h"

namespace {

constexpr std::int64_t kFewest = 8, kMost = std::int64_t{1} << 24;  // an eighth of them is measured, too

// 0: no such number.
std::int64_t tokens_of(std::string_view text) {
  std::int64_t tokens = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tokens);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && tokens >= kFewest && tokens <= kMost ? tokens : 0;
}

int show(std::int64_t longest) {
  std::printf("%10s  %24s  %24s\n", "", "peak MiB of a rank", "seconds");
  std::printf("%10s  %8s%8s%8s  %8s%8s%8s  (ranks)\n", "tokens", "1", "2", "4", "1", "2", "4");
  for (std::int64_t length = longest / 8; length <= longest; length *= 2) {
    long_sequence::Cost costs[3];
    for (int i = 0; i < 3; ++i) costs[i] = long_sequence::cost_of(1 << i, length);
    std::printf("%10lld", static_cast<long long>(length));
    std::printf("  %8.1f%8.1f%8.1f", costs[0].bytes / 1048576, costs[1].bytes / 1048576, costs[2].bytes / 1048576);
    std::printf("  %8.3f%8.3f%8.3f\n", costs[0].seconds, costs[1].seconds, costs[2].seconds);
  }
  return dtensor::finish_output(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "4096";
  const bool help = word == "--help" || word == "-h";
  const std::int64_t longest = argc > 2 ? 0 : tokens_of(word);
  if (longest > 0) return show(longest);
  std::fprintf(help ? stdout : stderr, "usage: long_sequence [TOKENS], the longest sequence, of %lld or more; 4096\n",
               static_cast<long long>(kFewest));
  return help ? dtensor::finish_output(0) : 2;
}
