// The conformance suite on a GPU: with NCCL on one rank (DTENSOR_TEST_BACKEND=nccl), otherwise on thread ranks that
// share the GPU. Skipped without a GPU.
#include "comm/conformance_test.cpp"

#include <c10/cuda/CUDAFunctions.h>

#include <cstdlib>

#include "comm/fixture_test.cpp"
#include "comm/groups_test.cpp"
#include "comm/lists_test.cpp"
#include "comm/on_device.h"
#include "comm/resolved_values_test.cpp"
#include "dtensor/launch.h"

namespace dtensor::test {
namespace {

bool over_nccl() {
  const char* asked = std::getenv("DTENSOR_TEST_BACKEND");
  return asked != nullptr && std::string(asked) == "nccl";
}

}  // namespace

void on_ranks(int ranks, const std::function<void(Communicator)>& body) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  if (over_nccl() && ranks > 1) GTEST_SKIP() << "each rank of NCCL needs its own GPU";
  run_local(ranks, [&](const Communicator& world) {
    if (!over_nccl()) return body(on_device(world, {c10::kCUDA, 0}));
    const Communicator nccl = nccl_communicator(world, 0);
    body(nccl);  // stages CPU tensors
    body(on_device(nccl, {c10::kCUDA, 0}));
  });
}

}  // namespace dtensor::test
