// Large scores without a mask: in float, a score plus the logarithm of a sum rounds to the score.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "attention/cases.h"

namespace dtensor::test {
namespace {

constexpr double kLarge = 8192;

// Equal keys have equal weights on any number of ranks.
TEST(AttentionLargeScores, EqualKeysGiveTheMeanOfTheValues) {
  const auto x = at::full({1, 2, 8, 64}, kLarge, at::kFloat), values = Draw(3).normal({1, 2, 8, 64}, at::kFloat);
  const auto mean = values.mean(2, true).expand_as(values);
  for (const auto strategy :
       {AttentionStrategy::automatic, AttentionStrategy::ring, AttentionStrategy::gather, AttentionStrategy::ulysses}) {
    for (const auto& queries : {Shard(2), Replicate()}) {  // for replicated queries the results are merged
      on_mesh({2}, [&](const DeviceMesh& mesh) {
        const AttentionStrategyScope scope(strategy);
        const auto v = distribute_tensor(values, mesh, {Shard(2)}).requires_grad_();
        const auto y = attention(distribute_tensor(x, mesh, {queries}), distribute_tensor(x, mesh, {Shard(2)}), v);
        const auto what = c10::str(to_string(strategy), " ", queries.str());
        expect_close(y.detach(), mean, what, 1e-5);
        y.sum().backward();
        expect_close(v.grad(), at::ones_like(values), what + ", of the values", 1e-5);
      });
    }
  }
}

Case draw_case(std::uint64_t seed) {
  Draw draw(seed);
  Case c;
  c.seed = seed % 1000;
  c.large = kLarge;
  c.mesh = {draw.integer(2, 3)};
  c.keys = draw.integer(1, 9);
  c.queries = draw.coin() ? c.keys : draw.integer(1, 9);
  c.groups = draw.coin() ? 4 : 2;
  c.dtype = draw.coin() ? at::kFloat : at::kDouble;
  c.by_aten = draw.coin();
  c.strategy = static_cast<AttentionStrategy>(draw.integer(0, 3));
  const auto split = draw.coin() ? ZigzagShard(2) : Shard(2);
  c.where = {{draw.coin() ? split : Replicate()}, {split}, {split}};
  c.options.causal = draw.coin();
  if (draw.integer(0, 3) == 0) c.options.dropout = 0.5;
  if (!c.options.causal && draw.coin()) c.options.mask = draw.normal({c.queries, c.keys}).lt(0.5);
  if (c.by_aten) return c;
  if (draw.coin()) c.options.window = draw.integer(1, 9);
  if (draw.coin()) c.options.sinks = draw.normal({c.heads}, c.dtype);
  return c;
}

TEST(AttentionLargeScores, MatchesSingleDevice) {
  EXPECT_TRUE(rc::check("attention with large scores", [](std::uint64_t seed) {
    const Case c = draw_case(seed);
    RC_LOG() << c.str();
    check_case(c);
  }));
}

}  // namespace
}  // namespace dtensor::test
