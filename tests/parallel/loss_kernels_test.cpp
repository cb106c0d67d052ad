// The kernels of cross entropy against formulas in float64, their order of sums, and the memory of losses.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/debug.h"
#include "dtensor/dtensor.h"
#include "internal/kernels/host_device.h"
#include "parallel/loss/row_kernels.h"
#include "support/loss_rows.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

TEST(ExpOf, HasTwoUnitsInTheLastPlaceAtMost) {
  double worst = 0;
  for (float x = -86; x < 88; x += 0.00137F) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(dist::exp_of(x)) - exact) / exact);
  }
  EXPECT_LT(worst, 2.0 / (1 << 23));
  EXPECT_EQ(dist::exp_of(0.0F), 1.0F);
  EXPECT_EQ(dist::exp_of(-87.0F), 0.0F);
  EXPECT_EQ(dist::exp_of(-std::numeric_limits<float>::infinity()), 0.0F);
  EXPECT_TRUE(std::isnan(dist::exp_of(std::numeric_limits<float>::quiet_NaN())));
}

double tolerance_of(at::ScalarType type) { return type == at::kDouble ? 1e-12 : 1e-5; }

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

TEST(LossKernels, SumsEqualFloat64) {
  test::Draw draw(31);
  for (int round = 0; round < 100; ++round) {
    const auto type = kTypes[round % 4];
    const test::RowCase c = test::draw_rows(draw, type);
    const auto [top, sums] = loss_rows::sums(c.rows);
    const auto& [rows, x] = c;
    if (rows.values.size(0) == 0) continue;
    const auto what = c10::str(type, " round ", round);
    const at::Tensor most = rows.classes > 0 ? x.amax(1) : at::full({x.size(0)}, -INFINITY, at::kDouble);
    EXPECT_TRUE(at::equal(top.to(at::kDouble), most)) << what;
    EXPECT_TRUE(at::equal(loss_rows::largest(rows), top)) << what;
    const at::Tensor shifted = x - most.unsqueeze(1), index = rows.targets - rows.first;
    const at::Tensor here = index.ge(0).logical_and(index.lt(rows.classes));
    const at::Tensor weight =
        rows.weight.defined() ? rows.weight.to(at::kDouble) : at::ones({rows.classes}, at::kDouble);
    const auto close = [&](loss_rows::Sum sum, const at::Tensor& expected) {
      test::expect_close(sums[sum].to(at::kDouble), expected, what + " sum " + std::to_string(sum),
                         tolerance_of(type) * (1 + expected.abs().max().item<double>()));
    };
    close(loss_rows::kExponentials, shifted.exp().sum(1));
    if (rows.smooths) close(loss_rows::kSmoothing, shifted.mv(weight));
    if (rows.classes == 0) continue;
    const at::Tensor safe = index.clamp(0, rows.classes - 1).unsqueeze(1);
    close(loss_rows::kTarget, at::where(here, shifted.gather(1, safe).squeeze(1), 0.0));
    close(loss_rows::kTargetWeight, at::where(here, weight.index({safe.squeeze(1)}), 0.0));
  }
}

TEST(LossKernels, GradientsAreTheFormulaInFloat64) {
  test::Draw draw(32);
  for (int round = 0; round < 100; ++round) {
    const auto type = kTypes[round % 4];
    const auto [rows, x] = test::draw_rows(draw, type);
    const auto tokens = rows.values.size(0);
    const at::Tensor factors = draw.normal({loss_rows::kFactors, tokens}).to(at::toOpMathType(type));
    if (tokens > 0 && rows.classes > 0) factors[0].add_(x.logsumexp(1).to(factors.scalar_type()));
    const bool in_place = draw.coin();
    auto mine = rows;
    if (in_place) mine.values = rows.values.clone();
    const at::Tensor out = in_place ? mine.values : at::full(rows.values.sizes(), 7, rows.values.options());
    loss_rows::gradient(mine, factors, out);
    const at::Tensor f = factors.to(at::kDouble).unsqueeze(2);
    const at::Tensor weight =
        rows.weight.defined() ? rows.weight.to(at::kDouble) : at::ones({rows.classes}, at::kDouble);
    at::Tensor expected = (x - f[0]).exp() * f[1] - f[2] * weight;
    const at::Tensor classes = at::arange(rows.first, rows.first + rows.classes, at::kLong);
    expected = expected - f[3] * rows.targets.unsqueeze(1).eq(classes);
    const at::Tensor own = out.narrow(1, 0, rows.classes),
                     rest = out.narrow(1, rows.classes, out.size(1) - rows.classes);
    const double unit = type == at::kHalf ? 1e-3 : type == at::kBFloat16 ? 8e-3 : tolerance_of(type);
    EXPECT_TRUE(at::allclose(own.to(at::kDouble), expected, unit, unit * 0.01)) << type << " round " << round;
    EXPECT_EQ(rest.count_nonzero().item<std::int64_t>(), 0);
  }
}

// A row of float logits in the order of sums of the CUDA kernel, written as its threads run: 512 threads with 8 lanes.
float sum_as_threads(const float* row, std::int64_t classes, float top) {
  constexpr int kThreads = 512;
  std::vector<float> threads(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) {
    float lanes[8] = {};
    for (std::int64_t from = thread * 8; from < classes; from += kThreads * 8) {
      for (std::int64_t i = 0; i < 8 && from + i < classes; ++i) lanes[i] += dist::exp_of(row[from + i] - top);
    }
    for (int half = 4; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    threads[static_cast<std::size_t>(thread)] = lanes[0];
  }
  const auto shuffle = [](std::vector<float> all) {  // As __shfl_xor_sync.
    for (std::size_t half = all.size() / 2; half > 0; half /= 2) {
      const auto before = all;
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = before[i] + before[i ^ half];
    }
    return all[0];
  };
  std::vector<float> warps;
  for (auto warp = threads.begin(); warp != threads.end(); warp += 32) warps.push_back(shuffle({warp, warp + 32}));
  return shuffle(warps);
}

TEST(LossKernels, SumsOnTheCpuHaveTheBitsOfTheGpuOrder) {
  test::Draw draw(33);
  for (const std::int64_t classes : {1, 7, 257, 4096, 4099, 12345}) {
    const at::Tensor values = draw.normal({3, classes}, at::kFloat);
    loss_rows::Rows rows;
    rows.values = values, rows.targets = at::zeros({3}, at::kLong), rows.classes = rows.count = classes;
    const auto [top, sums] = loss_rows::sums(rows);
    for (std::int64_t t = 0; t < 3; ++t) {
      const float expected = sum_as_threads(values[t].const_data_ptr<float>(), classes, top[t].item<float>());
      EXPECT_EQ(sums[loss_rows::kExponentials][t].item<float>(), expected) << classes;
    }
  }
}

// The logits of 512 tokens and 1,000 classes take 1 MB in bfloat16. The product on the CPU needs as much, or 2 MB on
// processors without products of bfloat16. A copy in float32 would take 2 MB more than the logits.
TEST(LinearCrossEntropy, KeepsOneCopyOfTheLogitsInTheirDtype) {
  test::on_mesh({1}, [](const DeviceMesh& mesh) {
    test::Draw draw(35);
    const auto leaf = [&](const test::Shape& sizes) {
      return distribute_tensor(draw.normal(sizes, at::kBFloat16), mesh, {Replicate()}).requires_grad_();
    };
    const at::Tensor hidden = leaf({512, 8}), weight = leaf({1000, 8}), targets = draw.integers({512}, 1000);
    std::int64_t product = 0;
    {
      const MemoryTimeline of_product;
      (void)at::linear(hidden.detach(), weight.detach());
      product = of_product.peak().bytes;
    }
    const MemoryTimeline memory;
    linear_cross_entropy(hidden, weight, targets, {}, /*chunk=*/0).backward();
    EXPECT_GE(memory.peak().bytes, 1'000'000);
    EXPECT_LT(memory.peak().bytes, product + 100'000);
  });
}

TEST(CrossEntropy, ConvertsNoCopyOfTheLogits) {
  test::on_mesh({1}, [](const DeviceMesh& mesh) {
    test::Draw draw(36);
    const at::Tensor logits =
        distribute_tensor(draw.normal({512, 1000}, at::kBFloat16), mesh, {Replicate()}).requires_grad_();
    const at::Tensor targets = draw.integers({512}, 1000);
    const MemoryTimeline memory;
    cross_entropy(logits, targets).backward();
    EXPECT_LT(memory.peak().bytes, 1'300'000);  // The gradient, in bfloat16.
  });
}

// A second pass through the same graph computes the overwritten logits again.
TEST(LinearCrossEntropy, SecondBackwardGivesTheSameGradients) {
  test::Draw draw(37);
  const at::Tensor hidden = draw.normal({6, 4}).requires_grad_(), weight = draw.normal({9, 4}).requires_grad_();
  const at::Tensor loss = linear_cross_entropy(hidden, weight, draw.integers({6}, 9), {}, 0);
  const auto first = torch::autograd::grad({loss}, {hidden, weight}, {}, /*retain_graph=*/true);
  const auto second = torch::autograd::grad({loss}, {hidden, weight});
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(first[i], second[i]));
}

}  // namespace
