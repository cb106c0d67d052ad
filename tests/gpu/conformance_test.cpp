// The conformance suite on a GPU: over NCCL (DTENSOR_TEST_BACKEND=nccl) with as many ranks as there are GPUs, or more
// if NCCL_MULTI_RANK_GPU_ENABLE=1; otherwise on thread ranks that share the GPU. Skipped without a GPU.
#include "comm/conformance_test.cpp"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstdlib>

#include "comm/fixture_test.cpp"
#include "comm/groups_test.cpp"
#include "comm/lists_test.cpp"
#include "comm/resolved_values_test.cpp"
#include "dtensor/launch.h"
#include "internal/ranks/staged_communicator.h"

namespace dtensor::test {
namespace {

bool over_nccl() {
  const char* asked = std::getenv("DTENSOR_TEST_BACKEND");
  return asked != nullptr && std::string(asked) == "nccl";
}

bool ranks_may_share() {
  const char* enabled = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return enabled != nullptr && std::string(enabled) == "1";
}

}  // namespace

void on_ranks(int ranks, const std::function<void(Communicator)>& body) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  const int devices = c10::cuda::device_count();
  if (over_nccl() && ranks > devices && !ranks_may_share()) GTEST_SKIP() << "each rank of NCCL needs its own GPU";
  run_local(ranks, [&](const Communicator& world) {
    if (!over_nccl()) return body(staged_communicator(world, {c10::kCUDA, 0}));
    const auto device = static_cast<c10::DeviceIndex>(world.rank() % devices);
    const c10::cuda::CUDAStreamGuard own_stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device));
    const Communicator nccl = nccl_communicator(world, device);
    body(nccl);  // CPU tensors
    body(staged_communicator(nccl, {c10::kCUDA, device}));
  });
}

}  // namespace dtensor::test
