// Random inputs of the fuzz targets of the sockets. scripts/fuzz_sockets.sh runs the same targets under libFuzzer and
// sanitizers; DTENSOR_SOCKET_FUZZ=100000 runs as many inputs here.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

#include "fuzz/sockets/targets.h"

namespace dtensor::fuzz {
namespace {

int inputs() {
  const char* text = std::getenv("DTENSOR_SOCKET_FUZZ");
  return text == nullptr ? 2000 : std::atoi(text);
}

// Half of the bytes are small: they select steps and sizes.
std::string draw(std::mt19937& random) {
  std::string bytes(random() % 400, '\0');
  const bool small = random() % 2 == 0;
  for (char& c : bytes) c = static_cast<char>(small && random() % 2 == 0 ? random() % 8 : random());
  return bytes;
}

void run(void (*target)(const std::uint8_t*, std::size_t)) {
  std::mt19937 random(1);
  testing::internal::CaptureStderr();  // a line for each refused connection
  for (int i = 0; i < inputs(); ++i) {
    const std::string bytes = draw(random);
    target(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  testing::internal::GetCapturedStderr();
}

TEST(SocketFuzz, FramesOfAPeerWriteOnlyBuffersOfMatchingMessages) { run(&fuzz_frames); }
TEST(SocketFuzz, OnlyRanksWithSecretAndTokenAreAdmitted) { run(&fuzz_admission); }
TEST(SocketFuzz, JoiningAnyServerEnds) { run(&fuzz_join); }

}  // namespace
}  // namespace dtensor::fuzz
