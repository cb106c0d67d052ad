// The CUDA kernels for permutations of a mixture of experts, compared with those of the CPU.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "gpu/gpu.h"
#include "moe/experts/experts.h"
#include "moe/experts/swiglu.h"
#include "moe/row_kernels.h"
#include "support/ranks.h"

namespace dtensor::moe {
namespace {

using GpuRows = test::Gpu;

struct Entries {
  at::Tensor ids, counts, position, weight, rows;
  std::int64_t kept = 0;
};

// Draws tokens that choose among bins; entries with the id `bins` are dropped.
Entries draw(std::uint64_t seed, at::ScalarType dtype) {
  test::Draw draw(seed);
  const auto tokens = draw.integer(0, 40), choices = draw.integer(1, 4), bins = draw.integer(1, 9);
  const auto width = draw.integer(1, 700);
  Entries e;
  e.ids = at::empty({tokens, choices}, at::kLong);
  for (std::int64_t i = 0; i < e.ids.numel(); ++i) e.ids.view(-1)[i] = draw.integer(0, draw.coin() ? bins : bins - 1);
  e.counts = count_kernel(e.ids.flatten(), bins);
  const auto sorted = sort_kernel(e.ids.flatten(), e.counts, -1);
  e.position = sorted.position.view({tokens, choices});
  e.kept = sorted.order.numel();
  e.weight = draw.normal({tokens, choices}).to(at::toOpMathType(dtype));
  e.rows = draw.normal({e.kept, width}).to(dtype);
  return e;
}

void expect_near(const at::Tensor& gpu, const at::Tensor& cpu, const char* what) {
  ASSERT_EQ(gpu.sizes(), cpu.sizes()) << what;
  const bool half = cpu.element_size() == 2;
  const double tolerance = half ? 2e-2 : cpu.scalar_type() == at::kDouble ? 1e-12 : 2e-5;
  EXPECT_TRUE(at::allclose(gpu.cpu().to(at::kDouble), cpu.to(at::kDouble), tolerance, tolerance)) << what;
}

TEST_F(GpuRows, EqualTheCpu) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (std::uint64_t seed = 0; seed < 25; ++seed) {
      const Entries e = draw(seed, dtype);
      const auto up = [](const at::Tensor& t) { return t.cuda(); };
      const auto bins = e.counts.numel();
      const at::Tensor counts = count_kernel(up(e.ids.flatten()), bins);
      EXPECT_TRUE(at::equal(counts.cpu(), e.counts));
      const auto sorted = sort_kernel(up(e.ids.flatten()), counts, -1);
      EXPECT_TRUE(at::equal(sorted.position.cpu().view_as(e.position), e.position));

      const at::Tensor x = test::Draw(seed + 1).normal({e.position.size(0), e.rows.size(1)}).to(dtype);
      EXPECT_TRUE(
          at::equal(permute_kernel(up(x), up(e.position), e.kept).cpu(), permute_kernel(x, e.position, e.kept)));
      const at::Tensor combined = unpermute_kernel(e.rows, e.position, e.weight);
      expect_near(unpermute_kernel(up(e.rows), up(e.position), up(e.weight)), combined, "combine");
      expect_near(unpermute_kernel(up(e.rows), up(e.position), {}), unpermute_kernel(e.rows, e.position, {}), "sum");
      const at::Tensor base = x.clone(), there = up(x);
      add_combined_kernel(base, e.rows, e.position, e.weight);
      add_combined_kernel(there, up(e.rows), up(e.position), up(e.weight));
      expect_near(there, base, "added");
      const auto cpu = unpermute_backward_kernel(x, e.rows, e.position, e.weight);
      const auto gpu = unpermute_backward_kernel(up(x), up(e.rows), up(e.position), up(e.weight));
      expect_near(gpu.first, cpu.first, "gradient of rows");
      expect_near(gpu.second, cpu.second, "gradient of weights");
    }
  }
}

// Groups of any size, empty ones too: the kernel of at::_grouped_mm asserts what it requires of their sizes.
TEST_F(GpuRows, GroupsNeedNoPadding) {
  for (std::uint64_t seed = 0; seed < 25; ++seed) {
    test::Draw draw(seed);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(draw.integer(1, 9)));
    for (auto& r : rows) r = draw.coin() ? draw.integer(0, 300) : draw.integer(0, 3);
    rows[0] += 1;
    const auto experts = static_cast<std::int64_t>(rows.size());
    const auto width = 8 * draw.integer(1, 40), ffn = 8 * draw.integer(1, 40);
    const auto run = [&](ExpertBackend backend) {
      test::Draw again(seed);
      const auto leaf = [&](const std::vector<std::int64_t>& sizes) {
        return (again.normal(sizes, at::kFloat) / 10).to(at::kBFloat16).cuda().requires_grad_();
      };
      const auto x = leaf({c10::sum_integers(rows), width}), w1 = leaf({experts, ffn, width});
      const auto w2 = leaf({experts, width, ffn}), w3 = leaf({experts, ffn, width});
      const auto y = run_experts(x, rows, {w1, w2, w3}, {.backend = backend});
      y.sum().backward();
      return std::vector<at::Tensor>{y.detach(), x.grad(), w1.grad(), w2.grad(), w3.grad()};
    };
    const auto expected = run(ExpertBackend::loop), got = run(ExpertBackend::grouped);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double scale = 1e-6 + expected[i].abs().max().item<double>();
      expect_near(got[i] / scale, (expected[i] / scale).cpu(), ("result " + std::to_string(i)).c_str());
    }
  }
}

TEST_F(GpuRows, SwigluHasTheBitsOfTheCpu) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (std::uint64_t seed = 0; seed < 25; ++seed) {
      test::Draw draw(seed);
      const auto n = draw.integer(1, 100000);
      const auto gate = draw.normal({n}).mul_(20).to(dtype), up = draw.normal({n}).to(dtype);
      const auto grad = draw.normal({n}).to(dtype);
      const auto results = [&](const auto& run, const auto& place) {
        std::vector<at::Tensor> made{at::empty_like(place(gate)), at::empty_like(place(gate)),
                                     at::empty_like(place(gate))};
        run(place(gate), place(up), place(grad), made);
        return made;
      };
      const auto cpu = results(
          [](const auto& g, const auto& u, const auto& dy, const auto& made) {
            swiglu_cpu_loops().forward(g, u, made[0]);
            swiglu_cpu_loops().backward(dy, g, u, made[1], made[2]);
          },
          [](const at::Tensor& t) { return t; });
      const auto gpu = results(
          [](const auto& g, const auto& u, const auto& dy, const auto& made) {
            auto leaf = g.detach().requires_grad_(), other = u.detach().requires_grad_();
            const auto y = swiglu(leaf, other);
            y.backward(dy);
            made[0].copy_(y.detach()), made[1].copy_(leaf.grad()), made[2].copy_(other.grad());
          },
          [](const at::Tensor& t) { return t.cuda(); });
      for (std::size_t i = 0; i < cpu.size(); ++i) {
        EXPECT_TRUE(at::equal(gpu[i].cpu(), cpu[i])) << dtype << " result " << i << " seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace dtensor::moe
