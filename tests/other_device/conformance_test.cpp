// The conformance suite on thread ranks whose tensors are in device memory; on 2 ranks also with collectives that copy
// through the host.
#include "comm/conformance_test.cpp"

#include "comm/fixture_test.cpp"
#include "comm/lists_test.cpp"
#include "internal/ranks/staged_communicator.h"
#include "other_device/fake_device.h"

namespace dtensor::test {

void on_ranks(int ranks, const std::function<void(Communicator)>& body) {
  fake::start();
  const c10::Device device(fake::kDevice, 0);
  run_local(ranks, [&](const Communicator& world) { body(staged_communicator(world, device)); });
  if (ranks != 2) return;
  run_local(ranks, [&](const Communicator& world) {
    body(staged_communicator(staged_communicator(world, at::kCPU), device));
  });
}

}  // namespace dtensor::test
