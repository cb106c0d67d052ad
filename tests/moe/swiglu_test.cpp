// The kernels of SwiGLU: values against float64, and experts that use them.
#include "moe/experts/swiglu.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>

#include "internal/kernels/gpu_kernels.h"
#include "moe/experts/experts.h"
#include "small_layer.h"

namespace dtensor::test {
namespace {

// The CPU takes its loops in place of ATen's operators.
struct OnCpu {
  OnCpu() { set_takes_gpu_kernels(at::kCPU, true); }
  ~OnCpu() { set_takes_gpu_kernels(at::kCPU, false); }
};

struct Results {
  at::Tensor y, d_gate, d_up;
};

Results of(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& grad, const char* node) {
  auto g = gate.clone().requires_grad_(), u = up.clone().requires_grad_();
  const auto y = moe::swiglu(g, u);
  EXPECT_EQ(y.grad_fn()->name(), node);
  y.backward(grad);
  return {y.detach(), g.grad(), u.grad()};
}

// Errors relative to the rounding of the dtype; `least` is the largest error of a value near zero.
void expect_rounded(const at::Tensor& got, const at::Tensor& exact, double epsilon, const char* what) {
  const auto error = (got.to(at::kDouble) - exact).abs();
  EXPECT_LE((error / (exact.abs() * epsilon + 1e-6)).max().item<double>(), 1.0) << what << got.scalar_type();
}

TEST(Swiglu, LoopsEqualFloat64UpToOneRounding) {
  const OnCpu kernels;
  const std::pair<at::ScalarType, double> dtypes[] = {{at::kFloat, 2e-6}, {at::kHalf, 6e-4}, {at::kBFloat16, 4.5e-3}};
  for (const auto& [dtype, epsilon] : dtypes) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      Draw draw(seed);
      const Shape sizes{draw.integer(1, 40), draw.integer(1, 300)};
      const auto scale = seed % 2 == 0 ? 1.0 : 40.0;  // saturates the sigmoid
      const auto gate = draw.normal(sizes).mul_(scale).to(dtype);
      const auto up = draw.normal(sizes).to(dtype), grad = draw.normal(sizes).to(dtype);
      const auto got = of(gate, up, grad, "SwigluBackward");
      const auto exact = of(gate.to(at::kDouble), up.to(at::kDouble), grad.to(at::kDouble), "MulBackward0");
      expect_rounded(got.y, exact.y, epsilon, "result");
      expect_rounded(got.d_gate, exact.d_gate, epsilon, "gradient of gate");
      expect_rounded(got.d_up, exact.d_up, epsilon, "gradient of up");
    }
  }
}

TEST(Swiglu, ExpertsWithTheKernelEqualThoseWithout) {
  for (const auto backend : {ExpertBackend::loop, ExpertBackend::grouped}) {
    const auto run = [&] {
      Draw draw(4);
      const auto leaf = [&](const Shape& sizes) { return draw.normal(sizes, at::kFloat).requires_grad_(); };
      const auto x = leaf({9, 8}), w1 = leaf({3, 16, 8}), w2 = leaf({3, 8, 16}), w3 = leaf({3, 16, 8});
      const auto y = run_experts(x, {4, 0, 5}, {w1, w2, w3}, {.backend = backend});
      y.square().sum().backward();
      return std::vector<at::Tensor>{y.detach(), x.grad(), w1.grad(), w2.grad(), w3.grad()};
    };
    const auto expected = run();
    const OnCpu kernels;
    const auto got = run();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto scale = expected[i].abs().max();
      expect_close(got[i] / scale, expected[i] / scale, c10::str("result ", i), 1e-5);
    }
  }
}

}  // namespace
}  // namespace dtensor::test
