// A Partial that one operator had to reduce is not reduced again by the next operator. The reduced value is not used
// after a write.
#include <gtest/gtest.h>

#include "dtensor/dtensor.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

at::Tensor partial(const DeviceMesh& mesh, const at::Tensor& share) {
  return DTensor::from_local(share.clone(), mesh, Placements(static_cast<std::size_t>(mesh.ndim()), Partial()),
                             share.sizes());
}

TEST(ReduceOnce, OneReductionForAllReadersForwardAndBackward) {
  for (const auto& shape : {test::Shape{2}, test::Shape{2, 2}}) {
    test::on_mesh(shape, [](const DeviceMesh& mesh) {
      test::Draw draw(4);
      const at::Tensor share = draw.normal({3, 4}), full = (share * mesh.size()).requires_grad_();
      const at::Tensor w = distribute_tensor(at::ones({}, at::kDouble), mesh, Placements(mesh.ndim())).requires_grad_();
      const at::Tensor x = partial(mesh, share) * w;
      const CommDebugMode comms;
      const at::Tensor y = at::gelu(x) + at::exp(x) * x;
      y.sum().backward();
      EXPECT_EQ(comms.total("all_reduce", Phase::forward).calls, 1) << comms.table();
      EXPECT_EQ(comms.total("", Phase::backward).calls, 1) << comms.table();  // The gradient of the scalar w.
      const at::Tensor regular = (full.detach() * 1).requires_grad_();
      const at::Tensor expected = at::gelu(regular) + at::exp(regular) * regular;
      expected.sum().backward();
      test::expect_close(y.detach(), expected.detach(), "value");
      test::expect_close(w.grad(), (regular.grad() * full.detach()).sum(), "gradient");
    });
  }
}

// Every way to change the tensor: itself, a view, its local tensor, a copy of the handle.
TEST(ReduceOnce, WritesInvalidateTheReducedValue) {
  using Change = std::function<void(const at::Tensor&)>;
  const std::vector<Change> changes = {
      [](at::Tensor x) { x.mul_(3); },
      [](const at::Tensor& x) { x.view({12}).mul_(3); },
      [](const at::Tensor& x) { x.t().mul_(3); },
      [](const at::Tensor& x) { x.detach().mul_(3); },
      [](const at::Tensor& x) { x.variable_data().mul_(3); },
      [](const at::Tensor& x) { DTensor(x).to_local().mul_(3); },
      [](const at::Tensor& x) { x.copy_(partial(DTensor(x).mesh(), DTensor(x).to_local() * 3)); },
      [](const at::Tensor& x) {
        std::vector<at::Tensor> list{x};
        at::_foreach_mul_(list, 3);
      },
      [](const at::Tensor& x) { DTensor(x).redistribute_({Replicate()}).mul_(3); },
  };
  test::on_mesh({2}, [&](const DeviceMesh& mesh) {
    test::Draw draw(5);
    const at::Tensor share = draw.normal({3, 4});
    for (std::size_t i = 0; i < changes.size(); ++i) {
      const at::Tensor x = partial(mesh, share);
      test::expect_close(at::exp(x), at::exp(share * 2), "before");
      changes[i](x);
      test::expect_close(at::exp(x), at::exp(share * 6), "after change " + std::to_string(i));
    }
    const at::Tensor x = partial(mesh, share);
    at::Tensor y = at::abs(x);
    y.add_(1);
    test::expect_close(at::abs(x), at::abs(share * 2), "after a write to a result");
    // An operator that keeps the Partial gives the same value as with the reduced form.
    test::expect_close(x + x, share * 4, "sum");
    const c10::InferenceMode inference;
    const at::Tensor z = partial(mesh, share);
    test::expect_close(at::exp(z), at::exp(share * 2), "inference");
    z.mul_(3);
    test::expect_close(at::exp(z), at::exp(share * 6), "inference, changed");
  });
}

}  // namespace
