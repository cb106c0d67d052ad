// Entry of libFuzzer (scripts/fuzz_sockets.sh), which defines the target.
#include "fuzz/sockets/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dtensor::fuzz::DTENSOR_FUZZ_TARGET(data, size);
  return 0;
}
