// Benefit of splitting a sequence over ranks: peak memory of a rank and time of forward and backward through
// transformer blocks, against the sequence length, on 1, 2 and 4 thread ranks.
#include <cstdio>

#include "command_line.h"
#include "cost.h"
#include "device_flag.h"
#include "dtensor/launch.h"
#include "tokens.h"

namespace {

int show(std::int64_t longest, c10::DeviceType device) {
  std::printf("%10s  %24s  %24s\n", "", "peak MiB of a rank", "seconds");
  std::printf("%10s  %8s%8s%8s  %8s%8s%8s  (ranks)\n", "tokens", "1", "2", "4", "1", "2", "4");
  for (std::int64_t length = longest / 8; length <= longest; length *= 2) {
    long_sequence::Cost costs[3];
    for (int i = 0; i < 3; ++i) costs[i] = long_sequence::cost_of(1 << i, length, device);
    std::printf("%10lld", static_cast<long long>(length));
    std::printf("  %8.1f%8.1f%8.1f", costs[0].bytes / 1048576, costs[1].bytes / 1048576, costs[2].bytes / 1048576);
    std::printf("  %8.3f%8.3f%8.3f\n", costs[0].seconds, costs[1].seconds, costs[2].seconds);
  }
  return dtensor::finish_output(0);
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t longest = 4096;
  std::string device = "cpu";
  CLI::App app("Prints memory and time of transformer blocks whose sequence is split over 1, 2 and 4 thread ranks.");
  app.add_option("TOKENS", longest, "the longest sequence")
      ->check(CLI::Range(long_sequence::kFewest, long_sequence::kMost))
      ->capture_default_str();
  device_flag::add(app, device);
  app.failure_message(command_line::failure_message);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? dtensor::finish_output(0) : 2;
  }
  if (const auto error = device_flag::find_error(device, "local"); !error.empty()) {
    std::fprintf(stderr, "long_sequence: %s\n", error.c_str());
    return 2;
  }
  return show(longest, device_flag::type_of(device));
}
