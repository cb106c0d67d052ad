// Benefit of splitting a sequence over ranks: peak memory of a rank and time of forward and backward through
// transformer blocks, against the sequence length, on 1, 2 and 4 thread ranks.
#include <cstdio>
#include <string_view>

#include "cost.h"
#include "dtensor/launch.h"
#include "tokens.h"

namespace {

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
  const std::int64_t longest = argc > 2 ? 0 : long_sequence::tokens_of(word);
  if (longest > 0) return show(longest);
  std::fprintf(help ? stdout : stderr, "usage: long_sequence [TOKENS], the longest sequence, of %lld or more; 4096\n",
               static_cast<long long>(long_sequence::kFewest));
  return help ? dtensor::finish_output(0) : 2;
}
