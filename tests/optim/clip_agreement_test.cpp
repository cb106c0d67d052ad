// All ranks clip by the same norm. Regular tensors that differ between ranks are an error. Ranks outside a mesh get the
// same norm. Overflow in single precision does not depend on the layout.
#include <cmath>

#include "optim/mixture.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string error_beside(const DeviceMesh& mesh, const Placements& placements, const at::Tensor& regular, double p) {
  const at::Tensor placed = distribute_tensor(at::ones({4, 4}), mesh, placements);
  return error_of([&] { get_total_norm({placed, regular}, {.norm_type = p}); });
}

// The DTensors alone need no exchange, or one along an axis on which the regular tensors are equal.
TEST(ClipAgreement, RegularTensorsAreComparedBesideAnyDTensors) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    const at::Tensor same = at::full({2}, 3.0f), other = at::full({2}, mesh.world().rank() < 2 ? 1.0f : 2.0f);
    for (const Placements& placements :
         {Placements{Replicate(), Replicate()}, Placements{Replicate(), Shard(0)}, Placements{Shard(0), Shard(1)}}) {
      for (const double p : {1.0, 2.0, kInfinity}) {
        const auto what = to_string(placements) + " of order " + std::to_string(p);
        EXPECT_EQ(error_beside(mesh, placements, same, p), "no error") << what;
        EXPECT_NE(error_beside(mesh, placements, other, p).find("expected equal regular tensors on all ranks"),
                  std::string::npos)
            << what;
      }
    }
  });
}

TEST(ClipAgreement, EqualRegularTensorsOfAnySizeAreAccepted) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const double value : {0.0, 1e-45, 1e-30, 1e18, 1e38}) {
      for (const double p : {1.0, 3.0, 10.0, kInfinity}) {
        EXPECT_EQ(error_beside(mesh, {Shard(0)}, at::full({3}, value, at::kFloat), p), "no error") << value << " " << p;
      }
    }
  });
}

// A rank outside a mesh may not have run the backward pass.
TEST(ClipAgreement, NormHasTheSameDtypeOnAllRanks) {
  run_local(3, [](Communicator world) {
    const DeviceMesh all = init_device_mesh(world, at::kCPU, {3}), two = device_mesh(world, at::kCPU, {0, 1}, {2});
    const at::Tensor a = distribute_tensor(at::ones({4}), all, {Replicate()}).requires_grad_();
    const at::Tensor b = distribute_tensor(at::ones({4}, at::kDouble), two, {Shard(0)}).requires_grad_();
    a.mutable_grad() = distribute_tensor(at::full({4}, 0.7f), all, {Replicate()});
    if (two.is_member()) b.mutable_grad() = b.detach() * 1.3;
    EXPECT_EQ(clip_grad_norm_({a, b}, 0.1).scalar_type(), at::kDouble);
  });
}

TEST(ClipAgreement, ClippingWithoutNormIsErrorForRegularGradientsOnly) {
  run_local(2, [](Communicator world) {
    const DeviceMesh first = device_mesh(world, at::kCPU, {0}, {1});
    const at::Tensor p = distribute_tensor(at::ones({4}), first, {Shard(0)}).requires_grad_();
    p.mutable_grad() = p.detach() * 4;
    clip_grads_with_norm_({p}, 1, get_total_norm({p.grad()}));
    if (first.is_member()) expect_close(p.grad(), at::full({4}, 0.5f), "clipped", 1e-5);
    const at::Tensor regular = at::ones({2}).requires_grad_();
    regular.mutable_grad() = at::ones({2});
    EXPECT_NE(error_of([&] { clip_grads_with_norm_({regular}, 1, {}); }).find("total_norm is undefined"),
              std::string::npos);
  });
}

TEST(ClipAgreement, RegularGradientOutsideTheMeshOptionIsAnError) {
  run_local(2, [](Communicator world) {
    const DeviceMesh first = device_mesh(world, at::kCPU, {0}, {1});
    const at::Tensor placed = distribute_tensor(at::ones({4}), first, {Shard(0)}).requires_grad_();
    const at::Tensor regular = at::ones({2}).requires_grad_();
    placed.mutable_grad() = placed.detach() * 4;
    regular.mutable_grad() = at::ones({2});
    const std::string error = error_of([&] { clip_grad_norm_({placed, regular}, 1, {.mesh = first}); });
    if (first.is_member()) {
      EXPECT_EQ(error, "no error");
    } else {
      EXPECT_NE(error.find("total_norm is undefined"), std::string::npos) << error;
    }
  });
}

// A rank with an empty shard must fail too instead of waiting for the others.
TEST(ClipAgreement, IntegerTensorsAreErrorOnAllRanks) {
  on_mesh({3}, [](const DeviceMesh& mesh) {
    for (const auto dtype : {at::kLong, at::kBool}) {
      const at::Tensor few = distribute_tensor(at::ones({2}, dtype), mesh, {Shard(0)});  // Empty on rank 2.
      const std::string error = error_of([&] { get_total_norm({few}); });
      EXPECT_NE(error.find("floating point or complex"), std::string::npos) << error;
    }
  });
}

// ATen sums large tensors in single precision; a shard of such a tensor may be small.
TEST(ClipAgreement, LargeSquaresDoNotOverflowOnAnyLayout) {
  on_mesh({4}, [](const DeviceMesh& mesh) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kComplexFloat}) {
      for (const double p : {2.0, 3.0}) {
        const double value = at::full({}, 1e20, dtype == at::kBFloat16 ? dtype : at::kFloat).item<double>();
        const at::Tensor full_tensor = at::full({20000}, value, dtype);
        const double expected = value * std::pow(20000, 1 / p);
        for (const at::Tensor& t : {full_tensor, at::Tensor(distribute_tensor(full_tensor, mesh, {Shard(0)}))}) {
          EXPECT_NEAR(get_total_norm({t}, {.norm_type = p}).item<double>(), expected, 1e-6 * expected) << dtype;
        }
      }
    }
    const at::Tensor infinite = at::full({20000}, kInfinity, at::kFloat);
    EXPECT_EQ(get_total_norm({infinite}).item<double>(), kInfinity);
  });
}

TEST(ClipAgreement, SmallPowersDoNotUnderflowOnAnyLayout) {
  on_mesh({4}, [](const DeviceMesh& mesh) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kComplexFloat}) {
      for (const auto& [p, around] : {std::pair(2.0, 1e-25), std::pair(2.0, 2e-22), std::pair(8.0, 1e-6)}) {
        const double value = at::full({}, around, dtype == at::kBFloat16 ? dtype : at::kFloat).item<double>();
        const at::Tensor full_tensor = at::full({20000}, value, dtype);
        const double expected = value * std::pow(20000, 1 / p);
        for (const at::Tensor& t : {full_tensor, at::Tensor(distribute_tensor(full_tensor, mesh, {Shard(0)}))}) {
          EXPECT_NEAR(get_total_norm({t}, {.norm_type = p}).item<double>(), expected, 1e-6 * expected)
              << dtype << " " << p;
        }
      }
    }
    EXPECT_EQ(get_total_norm({at::zeros({20000})}).item<double>(), 0);
  });
}

}  // namespace
}  // namespace dtensor::test
