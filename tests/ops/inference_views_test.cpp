// Views, created in inference mode, of tensors that were created outside it, such as parameters and buffers of a model.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace dtensor::test {
namespace {

TEST(InferenceViews, ViewsOfNormalTensorsAreNotInferenceTensors) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor full_tensor = at::arange(24, at::kDouble).reshape({6, 4});
    for (const Placement placement : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
      at::Tensor x = distribute_tensor(full_tensor, mesh, {placement});
      const c10::InferenceMode mode;
      for (const bool leaf : {false, true}) {
        if (leaf) x.requires_grad_();
        expect_close(x.detach(), full_tensor, "detach");
        expect_close(x.view({24}), full_tensor.view({24}), "view");
        expect_close(x.t(), full_tensor.t(), "t");
        expect_close(x.narrow(0, 1, 3), full_tensor.narrow(0, 1, 3), "narrow");
        expect_close(x.select(1, 2), full_tensor.select(1, 2), "select");
        expect_close(x.unsqueeze(0) + 1, full_tensor.unsqueeze(0) + 1, "unsqueeze");
      }
      EXPECT_EQ(x.detach().is_inference(), full_tensor.detach().is_inference());
      EXPECT_TRUE((x * 2).is_inference());
    }
  });
}

// A write to such a view changes the base and its generation.
TEST(InferenceViews, WriteToTheirBase) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    at::Tensor x = distribute_tensor(at::zeros({4, 2}), mesh, {Shard(0)});
    {
      const c10::InferenceMode mode;
      x.narrow(1, 0, 1).fill_(1);
    }
    expect_close(x.sum(), at::full({}, 4.0), "sum");
  });
}

}  // namespace
}  // namespace dtensor::test
