// Memory use of a rank in attention on split sequences.
#include <gtest/gtest.h>

#include "attention/cases.h"

namespace dtensor::test {
namespace {

// Expected use, in [B, H, S, E] floats: the local result, two blocks of keys and values, and the statistics of each
// row.
TEST(AttentionMemory, RingForwardAllocatesTwoRemoteBlocks) {
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

// Expected use in backward: the gradients of the local q, k and v and two blocks of keys and values. For an eighth of
// the heads also: current, outgoing and incoming gradients, two of each, and four results of a tile. None of it grows
// with the number of ranks.
TEST(AttentionMemory, RingBackwardAllocatesLocalGradientsAndTwoBlocks) {
  for (const std::int64_t ranks : {2, 4}) {
    for (const bool zigzag : {false, true}) {
      Case c = split_case(ranks, AttentionStrategy::ring);
      c.batch = 1, c.heads = c.groups = 32, c.features = c.values = 128, c.queries = c.keys = 128 * ranks;
      c.dtype = at::kFloat;
      c.options.causal = zigzag;
      if (zigzag) c.where = {{ZigzagShard(2)}, {ZigzagShard(2)}, {ZigzagShard(2)}};
      on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
        const auto x = at::ones({c.batch, c.heads, c.queries, c.features}, at::kFloat);
        const auto in = distributed(c, {x, x, x, x}, mesh);
        const auto grad = distribute_tensor(x, mesh, c.where[0]);
        const AttentionStrategyScope scope(c.strategy);
        const auto result = attend(c, in, {});
        const MemoryTimeline memory;
        torch::autograd::grad({result}, in, {grad});
        const std::int64_t rows = c.heads * c.queries / ranks, part = rows * c.features * 4, statistics = 2 * rows * 4;
        const auto parts = static_cast<double>(3 + 4) + (2 + 2 + 2 + 4) / 8.0;
        EXPECT_LE(static_cast<double>(memory.peak().bytes),
                  1.1 * (parts * static_cast<double>(part) + static_cast<double>(statistics)))
            << c.str();
      });
    }
  }
}

TEST(AttentionMemory, DropoutAllocatesNoScoresMatrix) {
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
              c.heads * c.queries / 2 * c.keys / 2 * 4);  // scores of one block in float
  });
}

// Each batch row packs other documents: memory use is that of a ring, without a rows x columns matrix.
TEST(AttentionMemory, DocumentsOfRowsAllocateNoScoresMatrix) {
  for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::gather, AttentionStrategy::ulysses}) {
    Case c = split_case(2, strategy);
    c.batch = 2, c.heads = c.groups = 2, c.features = c.values = 8, c.queries = c.keys = 8192;
    c.dtype = at::kFloat;
    c.by_aten = false;
    c.options.causal = true;
    c.rows = {{0, 1000, 5000}, {0, 4096, 4097, 8000}};
    c.where = {{ZigzagShard(2)}, {ZigzagShard(2)}, {ZigzagShard(2)}};
    on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
      const auto t = tensors_of(c);
      const auto in = distributed(c, t, mesh);
      const auto grad = distribute_tensor(t.grad, mesh, c.where[0]);
      const AttentionStrategyScope scope(c.strategy);
      const MemoryTimeline memory;
      const auto result = attend(c, in, {});
      torch::autograd::grad({result}, in, {grad});
      const std::int64_t part = c.batch * c.heads * c.queries / 2 * c.features * 4;  // 1 MiB
      EXPECT_LE(memory.peak().bytes, 24 * part) << to_string(strategy);
      EXPECT_LT(24 * part, c.queries / 2 * c.keys);  // bytes of the mask of one batch row
    });
  }
}

// Compares gradients of regular tensors with the formula.
void check_regular_gradients(const Case& c) {
  const auto t = tensors_of(c);
  std::vector<at::Tensor> in;
  for (const auto& x : t.inputs(c)) in.push_back(x.detach().clone().requires_grad_());
  const auto wanted = torch::autograd::grad({expected_result(c, in, {})}, in, {t.grad});
  const auto found = torch::autograd::grad({attend(c, in, c.options.mask)}, in, {t.grad});
  for (std::size_t i = 0; i < in.size(); ++i) require(found[i], wanted[i], c, "gradient " + std::to_string(i));
}

// With regular tensors, only the scores of one document at a time are in memory, with or without another mask.
TEST(AttentionMemory, RegularTensorsAllocateScoresPerDocument) {
  constexpr std::int64_t kLength = 512, kDocument = 64, kHeads = 4;
  Case c = split_case(1, AttentionStrategy::automatic);
  c.batch = 2, c.heads = kHeads, c.groups = 2, c.features = c.values = 8, c.queries = c.keys = kLength;
  c.by_aten = false;
  c.options.causal = true;
  c.options.sinks = Draw(5).normal({kHeads});
  for (const bool of_rows : {false, true}) {
    for (const bool masked : {false, true}) {
      c.options.documents.clear(), c.rows.clear();
      if (of_rows) c.rows.resize(2);
      for (std::int64_t i = 0; i < kLength / kDocument; ++i) {
        if (!of_rows) c.options.documents.push_back(i * kDocument);
        if (of_rows) c.rows[0].push_back(i * kDocument);
        if (of_rows && i != 3) c.rows[1].push_back(i == 0 ? 0 : i * kDocument - 5);
      }
      c.options.mask = masked ? Draw(6).normal({2, 1, kLength, kLength}) : at::Tensor();
      run_local(1, [&](Communicator) {
        const auto t = tensors_of(c);
        const std::vector<at::Tensor> in{t.q, t.k, t.v, c.options.sinks};
        const auto wanted = expected_result(c, in, {});
        const at::NoGradGuard no_grad;
        const MemoryTimeline memory;
        const auto found = attend(c, in, c.options.mask);
        const std::int64_t longest = of_rows ? 2 * kDocument : kDocument;
        const std::int64_t scores = c.batch * kHeads * longest * longest * kItem, part = t.q.numel() * kItem;
        EXPECT_LE(memory.peak().bytes, 6 * scores + 4 * part) << c.str();
        EXPECT_LT(6 * scores + 4 * part, c.batch * kHeads * kLength * kLength * kItem);
        require(found, wanted, c, "the result");
      });
      check_regular_gradients(c);
    }
  }
}

// Backward saves the operands without a copy, the result, and one number per row.
TEST(AttentionMemory, GatheredKeysAreNotSavedForBackward) {
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
