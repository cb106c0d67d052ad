// Gradients of parameters that are listed twice, and gradients that are views of a larger buffer.
#include "optim/mixture.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

TEST(Gradients, DuplicateParametersAreClippedOnce) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const bool placed : {true, false}) {
      const auto put = [&](double value) {
        const at::Tensor full_tensor = at::full({4}, value, at::kDouble);
        return placed ? at::Tensor(distribute_tensor(full_tensor, mesh, {Shard(0)})) : full_tensor;
      };
      const at::Tensor p = put(1).requires_grad_();
      p.mutable_grad() = put(8);
      EXPECT_NEAR(clip_grad_norm_({p, p}, 4).item<double>(), 16, 1e-9);
      EXPECT_NEAR(get_total_norm({p.grad()}).item<double>(), 4, 1e-5);
      clip_grads_with_norm_({p, p}, 2, at::full({}, 4., at::kDouble));
      EXPECT_NEAR(get_total_norm({p.grad()}).item<double>(), 2, 1e-5);
    }
  });
}

// detach_() refuses views.
TEST(Gradients, ViewGradientsCanBeZeroed) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const bool placed : {true, false}) {
      const at::Tensor buffer =
          placed ? at::Tensor(distribute_tensor(at::ones({8}), mesh, {Replicate()})) : at::ones({8});
      const at::Tensor p = buffer.narrow(0, 0, 4).detach().clone().requires_grad_();
      p.mutable_grad() = buffer.narrow(0, 2, 4);
      SGD optimizer({p});
      EXPECT_EQ(error_of([&] { optimizer.zero_grad(false); }), "no error");
      EXPECT_EQ(full_of(buffer).sum().item<double>(), 4);
    }
  });
}

}  // namespace
}  // namespace dtensor::test
