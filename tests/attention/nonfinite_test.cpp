// Attention on split sequences loses no NaN and no infinity, however short the tiles are.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <limits>

#include "attention/cases.h"

namespace dtensor::test {
namespace {

template <class T>
T one_of(Draw& draw, const std::vector<T>& values) {
  return values[static_cast<std::size_t>(draw.integer(0, static_cast<std::int64_t>(values.size()) - 1))];
}

Case draw_case(Draw& draw) {
  Case c;
  c.mesh = {draw.integer(2, 4)};
  c.batch = c.heads = c.groups = 2;
  c.queries = draw.integer(1, 40);
  c.keys = draw.coin() ? c.queries : draw.integer(1, 40);
  c.dtype = one_of<at::ScalarType>(draw, {at::kFloat, at::kDouble, at::kBFloat16});
  c.options.causal = draw.coin();
  if (!c.options.causal && draw.coin()) c.options.mask = draw.normal({c.queries, c.keys}, at::kFloat).lt(0.5);
  for (auto& where : c.where) where[0] = draw.coin() ? ZigzagShard(2) : Shard(2);
  c.strategy =
      one_of<AttentionStrategy>(draw, {AttentionStrategy::ring, AttentionStrategy::gather, AttentionStrategy::ulysses});
  c.seed = static_cast<std::uint64_t>(draw.integer(0, 999));
  return c;
}

// Puts a value that is not finite into one row, or into all rows from a random one on.
void spoil(Draw& draw, const at::Tensor& t) {
  const double inf = std::numeric_limits<double>::infinity();
  const double value = one_of<double>(draw, {std::nan(""), std::nan(""), inf, -inf});
  const auto first = draw.integer(0, t.size(2) - 1);
  t.slice(2, first, draw.coin() ? first + 1 : t.size(2)).select(3, draw.integer(0, t.size(3) - 1)).fill_(value);
}

// The formula over visible keys only: a value at a hidden position does not count. A row without a score above -inf is
// 0.
at::Tensor expected_from_visible(const Case& c, const Tensors& t) {
  auto seen = seen_in(c);
  if (c.options.mask.defined()) seen = seen.logical_and(c.options.mask);
  const auto type = c.dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto q = t.q.to(type), k = t.k.to(type), v = t.v.to(type);
  const auto scores = (q.unsqueeze(3) * k.unsqueeze(2)).sum(4).div(std::sqrt(static_cast<double>(c.features)));
  const auto weights = at::_safe_softmax(scores.masked_fill(~seen, -INFINITY), 3).masked_fill(~seen, 0);
  const auto products = (weights.unsqueeze(4) * v.unsqueeze(2)).masked_fill(~seen.unsqueeze(2), 0);
  return products.sum(3);
}

// ATen's products may bring a value of a hidden position into a row; then NaN is accepted, but no other number.
void check_nothing_lost(const Case& c, const Tensors& t, const at::Tensor& found) {
  const auto expected = expected_from_visible(c, t);
  const double tolerance = c.dtype == at::kBFloat16 ? 6e-2 : 1e-4;
  const auto close = at::isclose(found.to(expected.scalar_type()), expected, tolerance, tolerance, true);
  const auto finite = [](const at::Tensor& x) { return x.isfinite().flatten(2).all(2); };
  const auto clean = finite(t.k).logical_and(finite(t.v)).unsqueeze(2).logical_and(t.q.isfinite().all(3)).unsqueeze(3);
  const auto right = close.logical_or(found.isnan().logical_and(~clean));
  TORCH_CHECK(right.all().item<bool>(), "row ", right.logical_not().nonzero()[0], " is ",
              found.masked_select(~right)[0].item<double>(), ", expected ",
              expected.masked_select(~right)[0].item<double>(), ": ", c.str());
}

TEST(AttentionNonfinite, NoNaNIsLostForAnyLengthAndPosition) {
  const bool held = rc::check("attention of values that are not finite", [](std::uint64_t seed) {
    Draw draw(seed);
    const Case c = draw_case(draw);
    RC_LOG() << c.str();
    const Tensors t = tensors_of(c);
    spoil(draw, one_of<at::Tensor>(draw, {t.q, t.k, t.v}));
    on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
      const AttentionStrategyScope scope(c.strategy);
      const at::NoGradGuard no_grad;
      const auto result = attend(c, distributed(c, t, mesh), c.options.mask);
      check_nothing_lost(c, t, DTensor(result).full_tensor());
    });
  });
  EXPECT_TRUE(held);
}

// A query that is NaN or infinite makes its gradient NaN, and those of all keys that it sees.
void check_gradients(std::int64_t length, at::ScalarType type, double value) {
  Case c;
  c.queries = c.keys = length;
  c.dtype = type;
  c.options.causal = true;
  c.where = {{ZigzagShard(2)}, {ZigzagShard(2)}, {ZigzagShard(2)}};
  const Tensors t = tensors_of(c);
  const auto row = length / 2;
  t.q.select(2, row).fill_(value);
  t.k.abs_();
  on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
    const auto in = distributed(c, t, mesh);
    attend(c, in, {}).sum().backward();
    const auto is_nan = [&](int i) { return DTensor(in[i].grad()).full_tensor().isnan().all(3); };
    EXPECT_TRUE(is_nan(0).select(2, row).all().item<bool>()) << c.str() << " value " << value;
    for (const int i : {1, 2}) {
      EXPECT_TRUE(is_nan(i).narrow(2, 0, row + 1).all().item<bool>()) << c.str() << " value " << value << " of " << i;
    }
  });
}

TEST(AttentionNonfinite, GradientsOfARowThatIsNotFiniteAreNaN) {
  for (const std::int64_t length : {3, 8, 17, 40}) {
    for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        check_gradients(length, type, value);
      }
    }
  }
}

}  // namespace
}  // namespace dtensor::test
