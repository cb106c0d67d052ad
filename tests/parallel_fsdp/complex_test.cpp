// Views that read the memory of a parameter differently are not views of the unit's gathered copy: conjugate, negative,
// real part, other dtype of the same bits.
#include "parallel_fsdp/tower.h"

namespace dtensor::test {
namespace {

using Fn = std::function<at::Tensor(const at::Tensor& w, const at::Tensor& x)>;

at::Tensor as_real(const at::Tensor& t) {
  return at::view_as_real((is_dtensor(t) ? DTensor(t).full_tensor() : t).resolve_conj());
}

at::Tensor scalar(const at::Tensor& y) { return at::real(y).square().sum() + at::imag(y).sum(); }

void expect_as_on_one_device(const std::string& what, const Fn& loss, const Shape& sizes = {4, 4}) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Draw draw(1);
    at::Tensor regular = at::complex(draw.normal(sizes), draw.normal(sizes)).requires_grad_();
    at::Tensor w = regular.detach().clone().requires_grad_();
    fully_shard({{"w", &w}}, mesh);
    const auto x = draw.normal({8, 4});
    const auto in = at::complex(x, x * 0.3);
    for (int pass = 0; pass < 2; ++pass) {
      const auto expected = loss(regular, in), actual = loss(w, distribute_tensor(in, mesh, {Shard(0)}));
      expect_close(actual.detach(), expected.detach(), what);
      expected.backward(), actual.backward();
      expect_close(as_real(w.grad()), as_real(regular.grad()), what + ": gradient");
    }
  });
}

TEST(FsdpComplex, ConjugatedWeightsEqualOneDevice) {
  expect_as_on_one_device("conj", [](const auto& w, const auto& x) { return scalar(at::mm(x, w.conj())); });
  expect_as_on_one_device("mH", [](const auto& w, const auto& x) { return scalar(at::mm(x, w.mH())); });
  expect_as_on_one_device("twice", [](const auto& w, const auto& x) { return scalar(at::mm(x, w.conj().conj())); });
  expect_as_on_one_device("row", [](const auto& w, const auto& x) { return scalar(x * w.conj()[1]); });
}

TEST(FsdpComplex, ConjugatedGradientIsReduced) {
  expect_as_on_one_device("product", [](const auto& w, const auto& x) { return scalar(x.unsqueeze(2) * w.conj()); });
}

TEST(FsdpComplex, RealAndImaginaryParts) {
  for (const Shape& sizes : {Shape{4, 4}, Shape{1, 4}, Shape{4, 1}}) {
    expect_as_on_one_device(
        "real", [](const auto& w, const auto& x) { return (at::real(x) * at::real(w)[0]).square().sum(); }, sizes);
    expect_as_on_one_device(
        "imag", [](const auto& w, const auto& x) { return (at::real(x) * at::imag(w).narrow(0, 0, 1)).square().sum(); },
        sizes);
    expect_as_on_one_device(
        "negated", [](const auto& w, const auto& x) { return (at::real(x) * at::imag(w.conj())[0]).square().sum(); },
        sizes);
  }
}

TEST(FsdpComplex, BitsOfAWeight) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::NoGradGuard no_grad;
    const auto regular = Draw(1).normal({4, 4}, at::kFloat);
    at::Tensor w = regular.clone();
    fully_shard({{"w", &w}}, mesh);
    const auto zero = distribute_tensor(at::zeros({8, 1, 1}, at::kInt), mesh, {Shard(0)});
    const auto bits = DTensor(zero + w.view(at::kInt)).full_tensor();
    EXPECT_TRUE(at::equal(bits, regular.view(at::kInt).expand({8, 4, 4}))) << bits[0];
  });
}

}  // namespace
}  // namespace dtensor::test
