// Calls with uneven parts are judged by the CPU's kernels, whatever the mesh's device; what only the device has is not
// refused for that.
#include <gtest/gtest.h>
#include <torch/library.h>

#include "dtensor/rule.h"
#include "other_device/step.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

std::atomic<int> asked_of_the_cpu = 0;

TORCH_LIBRARY(there, m) {
  for (const char* name : {"only", "both", "kept_backward"}) m.def(c10::str(name, "(Tensor x) -> Tensor").c_str());
  for (const char* name : {"only", "both", "kept_backward"}) {
    m.impl(name, c10::DispatchKey::PrivateUse1, [](const at::Tensor& x) { return x * 2; });
  }
  for (const char* name : {"both", "kept_backward"}) {
    m.impl(name, c10::DispatchKey::CPU, [](const at::Tensor& x) -> at::Tensor {
      ++asked_of_the_cpu;
      TORCH_CHECK(false, "the CPU's kernel takes no ", x.sizes());
    });
  }
}

std::string error_with_uneven_parts(const char* name) {
  const std::string op = c10::str("there::", name);
  RuleBook::get().rule(op, Rule("m -> m").no_meta());
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

TEST(OtherDevice, TheCpuJudgesUnevenCalls) {
  asked_of_the_cpu = 0;
  EXPECT_NE(error_with_uneven_parts("both").find("the CPU's kernel takes no [5]"), std::string::npos);
  EXPECT_EQ(asked_of_the_cpu, 4);  // with zeros and with ones, on two ranks
}

TEST(OtherDevice, KernelsThatOnlyTheDeviceHasAreNotRefused) { EXPECT_EQ(error_with_uneven_parts("only"), "no error"); }

// What it kept for backward is its own affair.
TEST(OtherDevice, TheCpuDoesNotJudgeBackwardPasses) { EXPECT_EQ(error_with_uneven_parts("kept_backward"), "no error"); }

}  // namespace
}  // namespace dtensor::test
