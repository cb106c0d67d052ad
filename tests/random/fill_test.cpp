// Random fills: one global tensor for any layout, and the right distributions.
#include "random/fill.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "internal/contiguous_ranges.h"
#include "support/errors.h"

namespace dtensor {
namespace {

using test::error_of;

constexpr RandomKey kKey{42, 7};
using Sizes = std::vector<std::int64_t>;

#define EXPECT_ERROR(expression, part) EXPECT_NE(error_of([&] { expression; }).find(part), std::string::npos)

// All fills by name, as functions of tensor and region.
struct Case {
  std::string name;
  std::function<void(const at::Tensor&, const GlobalRegion&)> fill;
  std::vector<at::ScalarType> dtypes;
};

std::vector<Case> cases() {
  const std::vector<at::ScalarType> floats{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
  auto complex = floats;
  complex.push_back(at::kComplexFloat);
  complex.push_back(at::kComplexDouble);
  auto all = floats;
  all.insert(all.end(), {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong});
  const std::vector<at::ScalarType> wide{at::kFloat, at::kDouble, at::kInt, at::kLong};
  return {
      {"uniform", [](auto& t, auto& r) { fill_uniform(t, r, kKey, -1, 3); }, complex},
      {"normal", [](auto& t, auto& r) { fill_normal(t, r, kKey, 1, 2); }, complex},
      {"log_normal", [](auto& t, auto& r) { fill_log_normal(t, r, kKey, 0, 1); }, floats},
      {"bernoulli", [](auto& t, auto& r) { fill_bernoulli(t, r, kKey, 0.3); }, all},
      {"small integers", [](auto& t, auto& r) { fill_integers(t, r, kKey, -5, 1000); }, wide},
      {"large integers", [](auto& t, auto& r) { fill_integers(t, r, kKey, 0, 1 << 30); }, wide},
      {"integers", [](auto& t, auto& r) { fill_integers(t, r, kKey); }, all},
      {"exponential", [](auto& t, auto& r) { fill_exponential(t, r, kKey, 2); }, floats},
      {"geometric", [](auto& t, auto& r) { fill_geometric(t, r, kKey, 0.2); }, wide},
      {"cauchy", [](auto& t, auto& r) { fill_cauchy(t, r, kKey, 1, 2); }, floats},
  };
}

GlobalRegion full_region(at::IntArrayRef sizes) { return region_of(sizes, {Replicate()}, {1}, {0}); }

at::Tensor full_tensor(const Case& c, at::IntArrayRef sizes, at::ScalarType dtype) {
  auto t = at::empty(sizes, dtype);
  c.fill(t, full_region(sizes));
  return t;
}

// The elements of `global` in a region.
at::Tensor part(at::Tensor global, const GlobalRegion& region) {
  for (std::size_t d = 0; d < region.segments.size(); ++d) {
    std::vector<at::Tensor> pieces;
    for (const auto& s : region.segments[d])
      pieces.push_back(global.narrow(static_cast<std::int64_t>(d), s.offset, s.length));
    global = at::cat(pieces, static_cast<std::int64_t>(d));
  }
  return global;
}

Placement random_placement(std::int64_t ndim) {
  const auto kind = *rc::gen::inRange(0, 5);
  if (ndim == 0 || kind == 0) return Replicate();
  const auto dim = *rc::gen::inRange<std::int64_t>(0, ndim);
  if (kind == 2) return ZigzagShard(dim, *rc::gen::inRange<std::int64_t>(1, 3));
  return kind == 1 ? StridedShard(dim, *rc::gen::inRange<std::int64_t>(2, 4)) : Shard(dim);
}

RC_GTEST_PROP(RandomFill, LayoutsDoNotChangeTheGlobalTensor, ()) {
  const auto mesh = *rc::gen::elementOf(std::vector<Sizes>{{1}, {2}, {3}, {2, 2}, {2, 3}, {2, 2, 2}});
  const auto ndim = *rc::gen::inRange<std::int64_t>(0, 4);
  const auto sizes = *rc::gen::container<Sizes>(ndim, rc::gen::inRange<std::int64_t>(0, 9));
  Placements placements;
  for (std::size_t i = 0; i < mesh.size(); ++i) placements.push_back(random_placement(ndim));
  const auto all = cases();
  const auto& c = *rc::gen::elementOf(all);
  const auto dtype = *rc::gen::elementOf(c.dtypes);
  const auto global = full_tensor(c, sizes, dtype);
  Sizes at(mesh.size());
  for (auto& x : at) x = *rc::gen::inRange<std::int64_t>(0, mesh[&x - at.data()]);
  const auto region = region_of(sizes, placements, mesh, at);
  auto local = at::empty(region.local_sizes(), dtype);
  if (*rc::gen::arbitrary<bool>() && ndim > 1) local = local.transpose(0, 1).contiguous().transpose(0, 1);
  c.fill(local, region);
  RC_ASSERT(local.equal(part(global, region)));
}

RC_GTEST_PROP(RandomFill, RunsCoverTheRegionInOrder, ()) {
  const auto mesh = *rc::gen::elementOf(std::vector<Sizes>{{2}, {3}, {2, 2}, {2, 2, 2}});
  const auto ndim = *rc::gen::inRange<std::int64_t>(0, 4);
  const auto sizes = *rc::gen::container<Sizes>(ndim, rc::gen::inRange<std::int64_t>(0, 7));
  Placements placements;
  for (std::size_t i = 0; i < mesh.size(); ++i) placements.push_back(random_placement(ndim));
  Sizes at(mesh.size());
  for (auto& x : at) x = *rc::gen::inRange<std::int64_t>(0, mesh[&x - at.data()]);
  const auto region = region_of(sizes, placements, mesh, at);
  std::vector<std::int64_t> indices;
  const ContiguousRanges ranges(region.sizes, region.segments);
  ranges.each(0, ranges.numel(), [&](std::int64_t local, const ContiguousRanges::Range& range) {
    RC_ASSERT(local == static_cast<std::int64_t>(indices.size()));
    for (std::int64_t i = 0; i < range.length; ++i) indices.push_back(range.global + i);
  });
  std::int64_t numel = 1;
  for (const auto n : sizes) numel *= n;
  const auto expected = part(at::arange(numel).view(sizes), region).flatten();
  RC_ASSERT(at::tensor(indices, at::kLong).equal(expected));
}

// Long runs are drawn in vectorized batches, their ends in single blocks: both must give the same bits.
TEST(RandomFill, BatchesAndSingleBlocksAgree) {
  for (const auto& c : cases()) {
    for (const auto dtype : c.dtypes) {
      const auto global = full_tensor(c, {5000}, dtype);
      for (const std::int64_t ranks : {3, 7, 100, 2000}) {
        for (const std::int64_t rank : {std::int64_t{0}, std::int64_t{1}, ranks - 2, ranks - 1}) {
          const auto region = region_of({5000}, {Shard(0)}, {ranks}, {rank});
          auto local = at::empty(region.local_sizes(), dtype);
          c.fill(local, region);
          EXPECT_TRUE(local.equal(part(global, region))) << c.name << " " << dtype << " " << rank << " of " << ranks;
        }
      }
    }
  }
}

TEST(RandomFill, ContiguousShardIsOneRange) {
  const auto region = region_of({8, 5, 3}, {Shard(0)}, {2}, {1});
  const auto range = ContiguousRanges(region.sizes, region.segments).at(0);
  EXPECT_EQ(range.global, 60);
  EXPECT_EQ(range.length, 60);
}

TEST(RandomFill, FirstUniformsAreKnown) {
  auto t = at::empty({4}, at::kFloat);
  fill_uniform(t, full_region({4}), {0, 0});
  const std::uint32_t known[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(t[i].item<float>(), static_cast<float>(known[i] >> 8) / (1 << 24));
  auto d = at::empty({2}, at::kDouble);
  fill_uniform(d, full_region({2}), {0, 0});
  EXPECT_EQ(d[0].item<double>(), std::ldexp(static_cast<double>(0xe169c58d6627e8d5ULL >> 11), -53));
}

// Each product is rounded before the addition: a fused multiply-add would give different bits.
TEST(RandomFill, ProductsAreRoundedBeforeTheyAreAdded) {
  auto unit = at::empty({1 << 12}, at::kFloat), t = at::empty({1 << 12}, at::kFloat);
  fill_uniform(unit, full_region({1 << 12}), kKey);
  fill_uniform(t, full_region({1 << 12}), kKey, 0.1F, 0.7F);
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const volatile float product = unit.const_data_ptr<float>()[i] * (0.7F - 0.1F);
    const volatile float sum = product + 0.1F;
    ASSERT_EQ(t.const_data_ptr<float>()[i], sum) << i;
  }
}

TEST(RandomFill, KeysGiveDifferentNumbers) {
  const auto draw = [](RandomKey key) {
    auto t = at::empty({64}, at::kFloat);
    fill_uniform(t, full_region({64}), key);
    return t;
  };
  EXPECT_TRUE(draw({1, 2}).equal(draw({1, 2})));
  EXPECT_EQ(draw({1, 2}).eq(draw({1, 3})).sum().item<std::int64_t>(), 0);
  EXPECT_EQ(draw({1, 2}).eq(draw({2, 2})).sum().item<std::int64_t>(), 0);
}

// The largest distance between the empirical distribution of `sample` and `cdf`. It exceeds 1.95 / sqrt(n) with
// probability 0.001.
double kolmogorov_smirnov(const at::Tensor& sample, const std::function<double(double)>& cdf) {
  const auto sorted = std::get<0>(sample.flatten().to(at::kDouble).sort());
  const auto* x = sorted.const_data_ptr<double>();
  const auto n = static_cast<double>(sorted.numel());
  double worst = 0;
  for (std::int64_t i = 0; i < sorted.numel(); ++i) {
    const double f = cdf(x[i]);
    worst = std::max({worst, f - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - f});
  }
  return worst * std::sqrt(n);
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

void expect_distribution(const std::string& name, const std::function<double(double)>& cdf) {
  for (const auto& c : cases()) {
    if (c.name != name) continue;
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      EXPECT_LT(kolmogorov_smirnov(full_tensor(c, {300, 333}, dtype), cdf), 1.95) << name << " " << dtype;
    }
  }
}

TEST(RandomFill, ContinuousDistributionsFitTheirFunctions) {
  expect_distribution("uniform", [](double x) { return (x + 1) / 4; });
  expect_distribution("normal", [](double x) { return normal_cdf((x - 1) / 2); });
  expect_distribution("log_normal", [](double x) { return normal_cdf(std::log(x)); });
  expect_distribution("exponential", [](double x) { return 1 - std::exp(-2 * x); });
  expect_distribution("cauchy", [](double x) { return 0.5 + std::atan((x - 1) / 2) / 3.141592653589793; });
  EXPECT_GT(kolmogorov_smirnov(full_tensor(cases()[0], {100000}, at::kFloat), normal_cdf),
            1.95);  // Negative control.
}

// Neighbors are uncorrelated: along rows, along columns, and between both values of the Box-Muller transform.
TEST(RandomFill, NeighborsAreIndependent) {
  for (const auto* name : {"uniform", "normal"}) {
    const auto c = cases()[std::string(name) == "uniform" ? 0 : 1];
    auto t = full_tensor(c, {512, 512}, at::kDouble);
    t = (t - t.mean()) / t.std();
    for (const std::int64_t lag : {1, 2, 3, 4, 512}) {
      const auto flat = t.flatten();
      const auto n = flat.numel() - lag;
      const auto r = flat.narrow(0, 0, n).mul(flat.narrow(0, lag, n)).mean().item<double>();
      EXPECT_LT(std::abs(r), 4.0 / std::sqrt(static_cast<double>(n))) << name << " lag " << lag;
    }
  }
}

TEST(RandomFill, NormalMomentsFit) {
  auto t = at::empty({1 << 20}, at::kDouble);
  fill_normal(t, full_region({1 << 20}), kKey);
  EXPECT_NEAR(t.mean().item<double>(), 0, 5e-3);
  EXPECT_NEAR(t.var().item<double>(), 1, 1e-2);
  EXPECT_NEAR(t.pow(3).mean().item<double>(), 0, 2e-2);
  EXPECT_NEAR(t.pow(4).mean().item<double>(), 3, 5e-2);
  auto z = at::empty({1 << 16}, at::kComplexDouble);
  fill_normal(z, full_region({1 << 16}), kKey);
  EXPECT_NEAR(z.abs().square().mean().item<double>(), 1, 2e-2);
}

TEST(RandomFill, DiscreteFrequenciesFit) {
  const std::int64_t n = 100000;
  const auto near = [](double count, double expected) {
    EXPECT_LT(std::abs(count - expected), 5 * std::sqrt(expected));
  };
  auto b = at::empty({n}, at::kBool);
  fill_bernoulli(b, full_region({n}), kKey, 0.3);
  near(static_cast<double>(b.sum().item<std::int64_t>()), 0.3 * n);
  auto i = at::empty({n}, at::kLong);
  fill_integers(i, full_region({n}), kKey, -3, 7);
  EXPECT_EQ(i.min().item<std::int64_t>(), -3);
  EXPECT_EQ(i.max().item<std::int64_t>(), 6);
  const auto counts = (i + 3).bincount();
  for (int k = 0; k < 10; ++k) near(counts[k].item<double>(), n / 10.0);
  auto g = at::empty({n}, at::kLong);
  fill_geometric(g, full_region({n}), kKey, 0.25);
  for (int k = 1; k < 6; ++k) near(g.eq(k).sum().item<double>(), n * 0.25 * std::pow(0.75, k - 1));
  EXPECT_EQ(g.min().item<std::int64_t>(), 1);
}

TEST(RandomFill, UniformExcludesUpperBound) {
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    auto t = at::empty({1 << 20}, dtype);
    fill_uniform(t, full_region({1 << 20}), kKey);
    EXPECT_LT(t.max().item<double>(), 1.0) << dtype;
    EXPECT_GE(t.min().item<double>(), 0.0) << dtype;
    fill_uniform(t, full_region({1 << 20}), kKey, -2, -1);
    EXPECT_LT(t.max().item<double>(), -1.0) << dtype;
    fill_uniform(t, full_region({1 << 20}), kKey, 3, 3);
    EXPECT_TRUE(t.eq(3).all().item<bool>());
  }
}

TEST(RandomFill, LowPrecisionIsFloatRounded) {
  const auto c = cases()[1];
  const auto f = full_tensor(c, {33, 5}, at::kFloat);
  EXPECT_TRUE(full_tensor(c, {33, 5}, at::kBFloat16).equal(f.to(at::kBFloat16)));
  EXPECT_TRUE(full_tensor(c, {33, 5}, at::kHalf).equal(f.to(at::kHalf)));
}

TEST(RandomFill, BernoulliMaskDoesNotDependOnTheDtypeOrTheFormOfP) {
  const auto draw = [](at::ScalarType dtype) {
    auto t = at::empty({1000}, dtype);
    fill_bernoulli(t, full_region({1000}), kKey, 0.4);
    return t.to(at::kBool);
  };
  const auto mask = draw(at::kBool);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) EXPECT_TRUE(mask.equal(draw(dtype)));
  auto t = at::empty({1000}, at::kFloat);
  fill_bernoulli(t, full_region({1000}), kKey, at::full({1000}, 0.4, at::kDouble));
  EXPECT_TRUE(mask.equal(t.to(at::kBool)));
  fill_bernoulli(t, full_region({1000}), kKey, 1.0);
  EXPECT_TRUE(t.eq(1).all().item<bool>());
  fill_bernoulli(t, full_region({1000}), kKey, 0.0);
  EXPECT_TRUE(t.eq(0).all().item<bool>());
}

TEST(RandomFill, IntegersCoverTheirRange) {
  auto t = at::empty({4096}, at::kLong);
  fill_integers(t, full_region({4096}), kKey, std::numeric_limits<std::int64_t>::min(), std::nullopt);
  EXPECT_LT(t.min().item<std::int64_t>(), -(std::int64_t{1} << 62));
  EXPECT_GT(t.max().item<std::int64_t>(), std::int64_t{1} << 62);
  fill_integers(t, full_region({4096}), kKey);
  EXPECT_GE(t.min().item<std::int64_t>(), 0);
  auto h = at::empty({4096}, at::kHalf);
  fill_integers(h, full_region({4096}), kKey);
  EXPECT_LE(h.max().item<double>(), 2048);
  auto b = at::empty({4096}, at::kByte);
  fill_integers(b, full_region({4096}), kKey);
  EXPECT_EQ(b.max().item<std::int64_t>(), 255);
  EXPECT_ERROR(fill_integers(b, full_region({4096}), kKey, 0, 257), "to - 1 = 256 is out of range for Byte");
  EXPECT_ERROR(fill_integers(b, full_region({4096}), kKey, -1, 7), "from = -1 is out of range");
  EXPECT_ERROR(fill_integers(b, full_region({4096}), kKey, 7, 7), "from = 7 and to = 7");
}

TEST(RandomFill, PermutationHasEachIndexOnce) {
  for (const std::int64_t n : {0, 1, 2, 17, 1000}) {
    const auto p = random_permutation(n, kKey, {});
    EXPECT_TRUE(std::get<0>(p.sort()).equal(at::arange(n)));
  }
  EXPECT_EQ(random_permutation(5, kKey, at::kInt).scalar_type(), at::kInt);
  auto first = at::zeros({6}, at::kLong);  // Destination of element 0, over many operators.
  for (std::uint64_t op = 0; op < 6000; ++op) {
    first[random_permutation(6, {1, op}, {})[0].item<std::int64_t>()] += 1;
  }
  for (int k = 0; k < 6; ++k) EXPECT_NEAR(first[k].item<double>(), 1000, 150);
}

TEST(RandomFill, InvalidArgumentsAreErrors) {
  auto t = at::empty({2}, at::kFloat);
  const auto r = full_region({2});
  EXPECT_ERROR(fill_uniform(t, r, kKey, 2, 1), "from = 2 and to = 1");
  EXPECT_ERROR(fill_normal(t, r, kKey, 0, -1), "std = -1");
  EXPECT_ERROR(fill_bernoulli(t, r, kKey, 1.5), "p = 1.5");
  EXPECT_ERROR(fill_uniform(at::empty({2}, at::kLong), r, kKey), "expected a floating point tensor, got Long");
  EXPECT_ERROR(fill_uniform(t, full_region({3}), kKey), "expected a local tensor of sizes [3] for its region, got [2]");
  EXPECT_ERROR(region_of({4}, {Partial()}, {2}, {0}), "[P(sum)] cannot be filled with random numbers");
}

}  // namespace
}  // namespace dtensor
