// Masks of large finite numbers, as in transformers: in float, -1e9 plus the logarithm of a sum rounds to -1e9.
#include <gtest/gtest.h>

#include <limits>

#include "attention/cases.h"

namespace dtensor::test {
namespace {

// Rows in which a large finite mask hides every key are means over all keys, as on one device, not a mean per block.
TEST(AttentionMasks, RowsHiddenByFiniteMasksEqualOneDevice) {
  for (const double low : {-1e4, -1e9, static_cast<double>(std::numeric_limits<float>::lowest())}) {
    Case c;
    c.queries = c.keys = 10;
    c.dtype = at::kFloat;
    c.by_aten = false;
    auto hidden = at::zeros({10, 10}, at::kFloat);
    hidden.narrow(0, 0, 2).fill_(low);       // entire rows
    hidden.narrow(1, 0, 7).add_(low / 1e3);  // keys of both ranks: all that are visible to the first rows
    for (const bool causal : {true, false}) {
      for (const bool sinks : {false, true}) {
        c.options.causal = causal;
        c.options.mask = hidden;
        c.options.sinks = sinks ? at::zeros({4}, at::kFloat) : at::Tensor();
        for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::gather, AttentionStrategy::ulysses}) {
          c.strategy = strategy;
          c.where = {{Shard(2)}, {Shard(2)}, {Shard(2)}};
          check_case(c);
        }
        c.strategy = AttentionStrategy::automatic;
        c.where = {{Replicate()}, {RaggedShard(2, {1, 9})}, {RaggedShard(2, {1, 9})}};  // only keys are split
        check_case(c);
        c.rows = {{0, 4}, {0}};
        c.where = {{Shard(2)}, {Shard(2)}, {Shard(2)}};
        check_case(c);
        c.rows = {};
      }
    }
  }
}

TEST(AttentionMasks, WindowLongerThanTheSequence) {
  for (const std::int64_t window : {std::int64_t{11}, std::numeric_limits<std::int64_t>::max()}) {
    Case c;
    c.queries = c.keys = 10;
    c.strategy = AttentionStrategy::ring;
    c.options.window = window;
    c.by_aten = false;
    for (const bool causal : {true, false}) {
      c.options.causal = causal;
      check_case(c);
    }
  }
}

}  // namespace
}  // namespace dtensor::test
