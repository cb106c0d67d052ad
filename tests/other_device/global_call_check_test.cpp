// Calls with uneven shards are checked by CPU kernels, whatever the device of the mesh. Operators that only the device
// implements are not refused for that.
#include <gtest/gtest.h>
#include <torch/library.h>

#include "dtensor/rule.h"
#include "other_device/step.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

std::atomic<int> cpu_calls = 0;

TORCH_LIBRARY(there, m) {
  for (const char* name : {"only", "both", "kept"}) m.def(c10::str(name, "(Tensor x) -> Tensor").c_str());
  for (const char* name : {"only", "both", "kept"}) {
    m.impl(name, c10::DispatchKey::PrivateUse1, [](const at::Tensor& x) { return x * 2; });
  }
  for (const char* name : {"both", "kept"}) {
    m.impl(name, c10::DispatchKey::CPU, [](const at::Tensor& x) -> at::Tensor {
      ++cpu_calls;
      TORCH_CHECK(false, "the CPU kernel refuses sizes ", x.sizes());
    });
  }
}

std::string error_with_uneven_parts(const char* name, const Rule& rule = Rule("m -> m").no_meta()) {
  const std::string op = c10::str("there::", name);
  RuleBook::get().rule(op, rule);
  std::string error;
  on_device_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::ones({5}), mesh, {Shard(0)});
    const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), "");
    const auto text = error_of([&] {
      const auto y = handle.typed<at::Tensor(const at::Tensor&)>().call(x);
      EXPECT_TRUE(at::equal(host_value(y), at::full({5}, 2.0)));
    });
    if (mesh.world().rank() == 0) error = text;
    mesh.world().barrier();
  });
  return error;
}

TEST(OtherDevice, CpuKernelsCheckUnevenCalls) {
  cpu_calls = 0;
  EXPECT_NE(error_with_uneven_parts("both").find("the CPU kernel refuses sizes [5]"), std::string::npos);
  EXPECT_EQ(cpu_calls, 4);  // With zeros and with ones, on two ranks.
}

TEST(OtherDevice, KernelsOfTheDeviceOnlyAreNotRefused) { EXPECT_EQ(error_with_uneven_parts("only"), "no error"); }

TEST(OtherDevice, CallsWithSavedResultsAreNotCheckedOnTheCpu) {
  EXPECT_EQ(error_with_uneven_parts("kept", Rule("m -> m").no_meta().takes_saved_results()), "no error");
}

}  // namespace
}  // namespace dtensor::test
