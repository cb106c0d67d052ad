// Choice of the strategy of attention on split sequences: automatic, forced by a scope, and reported by explain().
#include <c10/util/strides.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "attention/cases.h"
#include "attention/strategy.h"
#include "mesh/mesh_impl.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

TEST(AttentionChoice, ScopeSelectsAndExplainReportsStrategy) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::gather, AttentionStrategy::ulysses,
                                AttentionStrategy::automatic}) {
      const auto c = split_case(2, strategy);
      const auto in = distributed(c, tensors_of(c), mesh);
      const AttentionStrategyScope scope(strategy);
      const auto text = explain([&] { attend(c, in, {}); }, Explain::decisions);
      const bool all = strategy == AttentionStrategy::automatic;
      for (const auto* name : {"ring", "gather", "ulysses"}) {
        const bool offered = text.find(std::string(": ") + name + ":") != std::string::npos;
        EXPECT_EQ(offered, all || std::string(name) == to_string(strategy)) << text;
      }
      EXPECT_NE(text.find("* "), std::string::npos) << text;
    }
  });
}

// Under a causal mask the last of two contiguous shards has three quarters of the work, while heads have equal work. At
// lengths where computation costs more than communication, ulysses is chosen. One head cannot be exchanged.
TEST(AttentionChoice, AutomaticPrefersUlyssesForUnbalancedShards) {
  const auto chosen = [](std::int64_t heads, std::int64_t length, bool causal) {
    std::string text;
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const auto x = distribute_tensor(at::zeros({1, heads, length, 8}), mesh, {Shard(2)});
      const auto reported =
          explain([&] { at::scaled_dot_product_attention(x, x, x, {}, 0, causal); }, Explain::decisions);
      if (mesh.coordinate()->front() == 0) text = reported.substr(reported.find("* "));
    });
    return text.substr(0, text.find('\n'));
  };
  EXPECT_NE(chosen(2, 2048, true).find("ulysses"), std::string::npos);
  EXPECT_NE(chosen(1, 2048, true).find("ring"), std::string::npos);
  EXPECT_NE(chosen(2, 2048, false).find("ring"), std::string::npos);
}

// Two heads on four ranks, contiguous and causal: ulysses over one axis for balance, a ring along the other.
TEST(AttentionChoice, RingWithinUlysses) {
  Case c = split_case(2, AttentionStrategy::automatic);
  c.mesh = {2, 2};
  c.where = {{Shard(2), Shard(2)}, {Shard(2), Shard(2)}, {Shard(2), Shard(2)}};
  c.batch = 1, c.heads = c.groups = 2, c.queries = c.keys = 512, c.features = c.values = 64;
  c.options.causal = true;
  on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
    const auto in = distributed(c, tensors_of(c), mesh);
    const auto reported = explain([&] { attend(c, in, {}); }, Explain::decisions);
    const auto chosen =
        reported.substr(reported.find("* "), reported.find('\n', reported.find("* ")) - reported.find("* "));
    EXPECT_NE(chosen.find(": ring"), std::string::npos) << reported;
    EXPECT_NE(chosen.find(": ulysses"), std::string::npos) << reported;
    const CommDebugMode comms;
    attend(c, in, {});
    EXPECT_GT(comms.total("all_to_all").calls, 0);
    EXPECT_EQ(comms.total("all_gather").calls, 0);
    check_case(c, mesh);
  });
}

// A replicated query with split keys (decoding): statistics and results are summed, and no keys move.
TEST(AttentionChoice, ReplicatedQueryMovesNoKeys) {
  for (const std::int64_t ranks : {2, 3}) {
    auto c = split_case(ranks, AttentionStrategy::automatic);
    c.queries = 1;
    c.keys = 3000;
    c.groups = 2;
    c.where[0] = {Replicate()};
    on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
      const auto in = distributed(c, tensors_of(c), mesh);
      attend(c, in, {});
      const CommDebugMode comms;
      const auto y = attend(c, in, {});
      EXPECT_EQ(DTensor(y).placements(), Placements{Replicate()});
      EXPECT_EQ(comms.total("all_reduce").calls + comms.total("all_reduce_list").calls, comms.total().calls)
          << comms.table();
      // The maxima, then results and sums. An all_reduce counts as twice the bytes that other ranks have.
      const std::int64_t rows = c.batch * c.heads, most = 2 * kItem * rows * (2 + c.values + 1);
      EXPECT_LE(comms.total().bytes, most) << comms.table();
      check_case(c, mesh);
    });
  }
}

// Zigzag shards are balanced, so exchanging heads gains nothing.
TEST(AttentionChoice, AutomaticChoosesRingForZigzag) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::zeros({1, 2, 2048, 8}), mesh, {ZigzagShard(2)});
    const auto reported = explain([&] { at::scaled_dot_product_attention(x, x, x, {}, 0, true); }, Explain::decisions);
    EXPECT_EQ(reported.find("axis 0: ring", reported.find("* ")), reported.find("* ") + 2) << reported;
  });
}

TEST(AttentionChoice, ParsesStrategyNames) {
  EXPECT_EQ(parse_attention_strategy("auto"), AttentionStrategy::automatic);
  EXPECT_EQ(parse_attention_strategy("ulysses"), AttentionStrategy::ulysses);
  EXPECT_THROW(parse_attention_strategy("rings"), c10::Error);
}

// A cached choice equals the choice of a search for any sequence of requests.
RC_GTEST_PROP(AttentionChoice, CachedLayoutEqualsSearchedLayout, ()) {
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 1000000);
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    const auto spec = [&](std::int64_t batch, std::int64_t heads, std::int64_t rows) {
      const at::DimVector sizes{batch, heads, rows, 4};
      return intern_spec(impl_of(mesh), draw.placements_of(mesh, sizes, false), sizes, c10::contiguous_strides(sizes),
                         draw.coin() ? at::kFloat : at::kDouble);
    };
    for (int i = 0; i < 20; ++i) {
      const auto batch = draw.integer(1, 3), heads = draw.integer(1, 2), rows = draw.integer(1, 4);
      const auto keys = spec(batch, heads, rows);
      const attention_impl::Operands o{spec(batch, 2 * heads, draw.coin() ? rows : 3), keys, keys};
      const attention_impl::Pattern pattern{draw.coin(), draw.integer(0, 2), {}};
      const auto strategy = draw.coin() ? AttentionStrategy::automatic : AttentionStrategy::ring;
      const auto searched = attention_impl::search_layout(o, pattern, strategy);
      for (int again = 0; again < 2; ++again) {
        const auto found = attention_impl::cached_layout(o, pattern, strategy);
        EXPECT_EQ(found.q, searched.q);
        EXPECT_EQ(found.kv, searched.kv);
        EXPECT_EQ(found.result, searched.result);
        EXPECT_EQ(found.ring, searched.ring);
        EXPECT_EQ(found.gather | found.ulysses << 8 | found.merge << 16,
                  searched.gather | searched.ulysses << 8 | searched.merge << 16);
      }
    }
  });
  RC_ASSERT(!::testing::Test::HasFailure());
}

}  // namespace
}  // namespace dtensor::test
