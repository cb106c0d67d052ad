// Convolutions, attention and products of a dry run: sizes and FLOPs.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/dry_run.h"
#include "support/draws.h"

namespace dry {
namespace {

using dtensor::Communicator;

std::int64_t flops_of(const std::function<void()>& fn) {
  const auto report = dtensor::dry_run({.ranks = 1}, [&](const Communicator&) { fn(); });
  std::int64_t flops = 0;
  for (const auto& [name, count] : report.operators) flops += count.flops;
  return flops;
}

struct Convolution {
  std::int64_t groups = 1;
  bool transposed = false;
  at::DimVector input = {}, weight = {}, stride = {}, dilation = {};

  at::Tensor operator()(const at::Tensor& x, const at::Tensor& w) const {
    const std::vector<std::int64_t> zeros(stride.size(), 0);
    return at::convolution(x, w, {}, stride, zeros, dilation, transposed, zeros, groups);
  }
};

// Without padding, which is not counted. Large enough to have no values.
Convolution any_convolution() {
  const auto number = [](int from, int to) { return std::int64_t{*rc::gen::inRange(from, to + 1)}; };
  Convolution c{.groups = number(1, 2), .transposed = *rc::gen::arbitrary<bool>()};
  const auto in = c.groups * number(1, 3), out = c.groups * number(1, 3);
  c.input = {number(16, 17), in}, c.weight = {c.transposed ? in : out, (c.transposed ? out : in) / c.groups};
  const auto dims = number(1, 3);
  for (int d = 0; d < dims; ++d) {
    c.input.push_back(dims == 1 ? 100 : 11), c.weight.push_back(number(1, 3));
    c.stride.push_back(number(1, 2)), c.dilation.push_back(number(1, 2));
  }
  return c;
}

// With ones everywhere, each product adds one to the sum of the result. Each gradient has as many products.
void convolution_sizes_and_flops() {
  const Convolution c = any_convolution();
  const auto x = at::ones(c.input).requires_grad_(), w = at::ones(c.weight).requires_grad_();
  const at::Tensor y = c(x, w);
  const auto products = y.detach().to(at::kDouble).sum().item<double>();
  at::DimVector sizes;
  std::vector<at::Tensor> gradients;
  const auto step = [&](bool backward) {
    const auto input = at::randn(c.input).requires_grad_(), weight = at::randn(c.weight).requires_grad_();
    const at::Tensor result = c(input, weight);
    sizes = result.sizes();
    if (!backward) return;
    gradients = torch::autograd::grad({result}, {input, weight}, {at::randn(sizes)});
  };
  RC_LOG() << "input " << x.sizes() << " weight " << w.sizes() << " transposed " << c.transposed << " groups "
           << c.groups << " stride " << at::IntArrayRef(c.stride) << " dilation " << at::IntArrayRef(c.dilation);
  RC_ASSERT(flops_of([&] { step(false); }) == static_cast<std::int64_t>(2 * products));
  RC_ASSERT(flops_of([&] { step(true); }) == static_cast<std::int64_t>(6 * products));
  RC_ASSERT(y.sizes().equals(sizes));
  RC_ASSERT(gradients[0].sizes().equals(x.sizes()) && gradients[1].sizes().equals(w.sizes()));
}

TEST(DryRunProducts, ConvolutionSizesAndFlops) {
  dtensor::test::check_property("DryRunProducts.ConvolutionSizesAndFlops", convolution_sizes_and_flops, 60);
}

// The fused kernel has the products of its decomposition, and in backward those of the scores again.
TEST(DryRunProducts, FlopsOfAttention) {
  const auto attention = [](bool fused, bool backward) {
    return flops_of([&] {
      const auto q = at::randn({2, 4, 64, 32}).requires_grad_(), k = at::randn({2, 4, 96, 32}).requires_grad_();
      const auto v = at::randn({2, 4, 96, 32}).requires_grad_();
      const auto out = fused ? std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v))
                             : std::get<0>(at::_scaled_dot_product_attention_math(q, k, v));
      if (backward) out.sum().backward();
    });
  };
  const std::int64_t one = 2LL * 2 * 4 * 64 * 96 * 32;
  EXPECT_EQ(attention(false, false), 2 * one);
  EXPECT_EQ(attention(true, false), 2 * one);
  EXPECT_EQ(attention(false, true), 6 * one);
  EXPECT_EQ(attention(true, true), 7 * one);
}

TEST(DryRunProducts, FlopsOfGroupedProducts) {
  const auto offsets = at::tensor({16, 40, 64, 64}, at::kInt);
  const auto rows = [&] { at::_grouped_mm(at::randn({64, 128}), at::randn({4, 128, 32}), offsets); };
  EXPECT_EQ(flops_of(rows), 2 * 64 * 128 * 32);
}

}  // namespace
}  // namespace dry
