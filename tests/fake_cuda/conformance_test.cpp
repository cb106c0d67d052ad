// The conformance suite on the NCCL backend, for tensors on the CPU and on devices.
#include "comm/conformance_test.cpp"

#include "comm/fixture_test.cpp"
#include "comm/groups_test.cpp"
#include "comm/lists_test.cpp"
#include "comm/resolved_values_test.cpp"
#include "fake_cuda/calls.h"
#include "internal/ranks/staged_communicator.h"

namespace dtensor::test {

void on_ranks(int ranks, const std::function<void(Communicator)>& body) {
  static std::uint64_t seed = 0;
  fake_cuda::expect_none(fake_cuda::errors_of_ranks(ranks, {++seed}, [&](const Communicator& nccl) {
    body(nccl);
    body(staged_communicator(nccl, {c10::kCUDA, static_cast<c10::DeviceIndex>(nccl.rank())}));
  }));
}

}  // namespace dtensor::test
