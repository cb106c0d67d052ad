// The memory that a rank holds in attention on split sequences.
#include <gtest/gtest.h>

#include "attention/cases.h"

namespace dtensor::test {
namespace {

// [B, H, S, E] floats: the own result, two blocks of keys and values, statistics of each row.
TEST(AttentionMemory, ARingHoldsTwoBlocksBesideItsOwn) {
  for (const std::int64_t ranks : {2, 4}) {
    Case c = split_case(ranks, AttentionStrategy::ring);
    c.batch = 1, c.heads = c.groups = 16, c.features = c.values = 64, c.queries = c.keys = 1536 * ranks;
    c.dtype = at::kFloat;
    on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
      const at::NoGradGuard no_grad;
      const auto x = at::ones({c.batch, c.heads, c.queries, c.features}, at::kFloat);
      const auto in = distributed(c, {x, x, x, x}, mesh);
      const AttentionStrategyScope scope(c.strategy);
      const MemoryTimeline memory;
      const auto result = attend(c, in, {});
      const std::int64_t rows = c.heads * c.queries / ranks, part = rows * c.features * 4, statistics = 2 * rows * 4;
      EXPECT_LE(static_cast<double>(memory.peak().bytes), 1.1 * static_cast<double>(part + 2 * 2 * part + statistics));
    });
  }
}

// In backward: the sums of three gradients, two blocks of keys and values, gradients of the block at hand, of the one
// before on their way home and of the own one from elsewhere, and what a tile gives. None of it grows with the ranks.
TEST(AttentionMemory, ARingsBackwardHoldsNoMoreOnMoreRanks) {
  for (const std::int64_t ranks : {4, 6}) {
    Case c = split_case(ranks, AttentionStrategy::ring);
    c.batch = 1, c.heads = c.groups = 8, c.features = c.values = 64, c.queries = c.keys = 256 * ranks;
    c.dtype = at::kFloat;
    on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
      const auto x = at::ones({c.batch, c.heads, c.queries, c.features}, at::kFloat);
      const auto in = distributed(c, {x, x, x, x}, mesh);
      const auto grad = distribute_tensor(x, mesh, c.where[0]);
      const AttentionStrategyScope scope(c.strategy);
      const auto result = attend(c, in, {});
      const MemoryTimeline memory;
      torch::autograd::grad({result}, in, {grad});
      const std::int64_t part = c.heads * c.queries / ranks * c.features * 4;
      EXPECT_LE(static_cast<double>(memory.peak().bytes), 1.1 * static_cast<double>((3 + 4 + 2 + 2 + 2 + 4) * part));
    });
  }
}

TEST(AttentionMemory, NothingOfTheSizeOfTheScoresIsHeldUnderDropout) {
  Case c = split_case(2, AttentionStrategy::ring);
  c.batch = 1, c.heads = c.groups = 2, c.features = c.values = 8, c.queries = c.keys = 4096;
  c.dtype = at::kFloat;
  c.options.dropout = 0.1;
  on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
    const auto t = tensors_of(c);
    const auto in = distributed(c, t, mesh);
    const AttentionStrategyScope scope(c.strategy);
    const MemoryTimeline memory;
    const auto result = attend(c, in, {});
    torch::autograd::grad({result}, in, {distribute_tensor(t.grad, mesh, c.where[0])});
    EXPECT_LE(memory.peak().bytes,
              c.heads * c.queries / 2 * c.keys / 2 * 4);  // scores of one block: 4,096 x 4,096 floats
  });
}

// Saved for backward: the operands where they are, the result, a number a row.
TEST(AttentionMemory, NoGatheredKeysAreSaved) {
  for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::gather}) {
    Case c = split_case(4, strategy);
    c.batch = 1, c.heads = c.groups = 2, c.features = c.values = 16, c.queries = c.keys = 4096;
    on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
      const auto in = distributed(c, tensors_of(c), mesh);
      const AttentionStrategyScope scope(c.strategy);
      const MemoryTimeline memory;
      const auto result = attend(c, in, {});
      const std::int64_t rows = c.heads * c.queries / 4;
      EXPECT_LE(memory.live(), rows * (c.values + 1) * kItem + 20000) << c.str();
    });
  }
}

}  // namespace
}  // namespace dtensor::test
