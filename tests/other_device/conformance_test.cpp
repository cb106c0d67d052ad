// The conformance suite on thread ranks whose tensors are in device memory.
#include "comm/conformance_test.cpp"

#include "comm/fixture_test.cpp"
#include "comm/lists_test.cpp"
#include "comm/on_device.h"
#include "other_device/fake_device.h"

namespace dtensor::test {

void on_ranks(int ranks, const std::function<void(Communicator)>& body) {
  fake::start();
  run_local(ranks, [&](const Communicator& world) { body(on_device(world, {fake::kDevice, 0})); });
}

}  // namespace dtensor::test
