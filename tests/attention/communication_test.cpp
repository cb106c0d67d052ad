// Communication and computation of attention on split sequences: bytes moved and blocks computed.
#include <gtest/gtest.h>

#include "attention/cases.h"
#include "attention/dtensor_attention.h"
#include "attention/passes/tiles.h"

namespace dtensor::test {
namespace {

struct Moved {
  std::int64_t forward, backward;
};

// Bytes that this rank receives. The gradient has the placement of the result.
Moved moved_by(const Case& c, const DeviceMesh& mesh) {
  const auto t = tensors_of(c);
  const auto in = distributed(c, t, mesh);
  const auto mask = mask_on(c, mesh);
  const auto grad = distribute_tensor(t.grad, mesh, c.where[0]);
  const AttentionStrategyScope scope(c.strategy);
  Moved moved{};
  for (int pass = 0; pass < 2; ++pass) {  // the first call compares a regular mask across ranks
    const CommDebugMode comms;
    const auto result = attend(c, in, mask);
    moved.forward = comms.total().bytes;
    torch::autograd::grad({result}, in, {grad});
    moved.backward = comms.total().bytes - moved.forward;
  }
  return moved;
}

std::int64_t keys_and_values(const Case& c) { return c.batch * c.groups * c.keys * (c.features + c.values) * kItem; }

TEST(AttentionCommunication, RingAndGatherReceiveRemoteKeysAndValuesOnce) {
  for (const std::int64_t ranks : {2, 3, 4}) {
    for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::gather}) {
      for (const std::int64_t groups : {12, 2, 1}) {  // keys move once, not once per query head
        auto c = split_case(ranks, strategy);
        c.groups = groups;
        on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
          const auto moved = moved_by(c, mesh);
          const auto others = keys_and_values(c) * (ranks - 1) / ranks;
          EXPECT_EQ(moved.forward, others) << c.str();
          EXPECT_EQ(moved.backward, 2 * others) << c.str();  // keys and values again, and gradients to their owners
        });
      }
    }
  }
}

TEST(AttentionCommunication, UlyssesExchangesEachTensorOnce) {
  for (const std::int64_t ranks : {2, 3, 4}) {
    const auto c = split_case(ranks, AttentionStrategy::ulysses);
    on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
      const auto moved = moved_by(c, mesh);
      const auto each = c.batch * c.heads * c.queries * c.features * kItem;  // of q, k, v and the result
      EXPECT_EQ(moved.forward, 4 * each * (ranks - 1) / (ranks * ranks)) << c.str();
      EXPECT_EQ(moved.backward, moved.forward) << c.str();
    });
  }
}

// With contiguous shards, rank r needs the blocks of the ranks before it.
TEST(AttentionCommunication, CausalRingSkipsFutureBlocks) {
  auto c = split_case(4, AttentionStrategy::ring);
  c.options.causal = true;
  on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
    const auto rank = mesh.coordinate()->front();
    const auto moved = moved_by(c, mesh);
    const auto block = keys_and_values(c) / 4;
    EXPECT_EQ(moved.forward, rank * block);
    EXPECT_EQ(moved.backward, rank * block + (3 - rank) * block);
  });
}

// Rank r has chunks r and 7 - r. It needs the first chunk of each earlier rank and both chunks of each later rank.
TEST(AttentionCommunication, CausalZigzagMovesOnlyVisibleChunks) {
  auto c = split_case(4, AttentionStrategy::ring);
  c.options.causal = true;
  c.where = {{ZigzagShard(2)}, {ZigzagShard(2)}, {ZigzagShard(2)}};
  on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
    const auto rank = mesh.coordinate()->front();
    const auto chunk = keys_and_values(c) / 8;
    const auto moved = moved_by(c, mesh);
    EXPECT_EQ(moved.forward, rank * chunk + (3 - rank) * 2 * chunk);
    // Gradients of its own chunks arrive: both from each earlier rank, the first from each later rank.
    EXPECT_EQ(moved.backward - moved.forward, rank * 2 * chunk + (3 - rank) * chunk);
  });
}

// Ratio of the largest number of operations of a rank to the mean, as the tiles count them.
TEST(AttentionCommunication, ZigzagIsBalancedUnderACausalMask) {
  const std::int64_t length = 4096, ranks = 4;
  const auto most_over_mean = [&](const Placement& split) {
    double most = 0, sum = 0;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const auto rows = shard_segments(length, 2, {split}, Shape{ranks}, Shape{r});
      const double pairs = attention_impl::count_pairs(attention_impl::tiles_of(rows, {{0, length}}, {true, 0, {}}));
      most = std::max(most, pairs);
      sum += pairs;
    }
    return most * static_cast<double>(ranks) / sum;
  };
  EXPECT_LE(most_over_mean(ZigzagShard(2)), 1.05);
  EXPECT_GE(most_over_mean(Shard(2)), 1.7);
}

TEST(AttentionCommunication, WindowMovesOnlyRowsWithinReach) {
  auto c = split_case(4, AttentionStrategy::ring);
  c.by_aten = false;
  c.options.causal = true;
  c.options.window = 3;  // two rows of the previous rank
  on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
    const auto rank = mesh.coordinate()->front();
    EXPECT_EQ(moved_by(c, mesh).forward, rank == 0 ? 0 : keys_and_values(c) * 2 / c.keys);
  });
}

TEST(AttentionCommunication, DocumentsThatEndAtAShardBoundaryMoveNothing) {
  auto c = split_case(4, AttentionStrategy::ring);
  c.by_aten = false;
  c.options.documents = {0, 3, 6, 12, 18};
  on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
    const auto moved = moved_by(c, mesh);
    EXPECT_EQ(moved.forward, 0);
    EXPECT_EQ(moved.backward, 0);
  });
}

TEST(AttentionCommunication, FullyMaskedBlocksAreNotMoved) {
  for (const bool boolean : {false, true}) {
    auto c = split_case(4, AttentionStrategy::ring);
    c.options.mask =
        at::ones({c.queries, c.keys}, at::kBool).tril().triu(-6);  // each rank needs its own block and the previous one
    if (!boolean) c.options.mask = at::zeros({c.queries, c.keys}, at::kDouble).masked_fill(~c.options.mask, -INFINITY);
    on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
      const auto rank = mesh.coordinate()->front();
      EXPECT_EQ(moved_by(c, mesh).forward, rank == 0 ? 0 : keys_and_values(c) / 4);
    });
  }
}

// On a mesh that also splits heads and batch, a rank moves only its part of the keys, along the sequence axis.
TEST(AttentionCommunication, BatchAndHeadAxesReduceTheBytes) {
  auto c = split_case(2, AttentionStrategy::ring);
  c.mesh = {2, 2, 2};
  c.where = {{Shard(0), Shard(2), Shard(1)}, {Shard(0), Shard(2), Shard(1)}, {Shard(0), Shard(2), Shard(1)}};
  on_mesh(c.mesh, [&](const DeviceMesh& mesh) { EXPECT_EQ(moved_by(c, mesh).forward, keys_and_values(c) / 8); });
}

// No state is kept from one sequence length for the next.
TEST(AttentionCommunication, LengthsMayChangeFromCallToCall) {
  on_mesh({3}, [](const DeviceMesh& mesh) {
    for (const std::int64_t length : {64, 7, 1, 63, 2, 64}) {
      Case c = split_case(3, AttentionStrategy::automatic);
      c.queries = c.keys = length;
      c.options.causal = true;
      check_case(c, mesh);
    }
  });
}

TEST(AttentionCommunication, TwiceDifferentiableByRecomputation) {
  for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::ulysses}) {
    for (const double dropout : {0.0, 0.5}) {
      Case c = split_case(2, strategy);
      c.heads = c.groups = 2, c.batch = 1, c.queries = c.keys = 5;
      c.options.causal = true;
      c.options.dropout = dropout;
      on_mesh(c.mesh, [&](const DeviceMesh& mesh) {
        manual_seed(mesh, 3);
        const auto t = tensors_of(c);
        const auto second = [&](const std::vector<at::Tensor>& in, const at::Tensor& y) {
          const auto first = torch::autograd::grad({y.square().sum()}, in, {}, true, true);
          auto sum = first[0].square().sum();
          for (std::size_t i = 1; i < first.size(); ++i) sum = sum + first[i].square().sum();
          return torch::autograd::grad({sum}, in);
        };
        std::vector<at::Tensor> regular;
        for (const auto& x : t.inputs(c)) regular.push_back(x.detach().clone().requires_grad_());
        const auto kept = kept_of(c, mesh);
        const auto wanted = second(regular, expected_result(c, regular, kept));
        const auto in = distributed(c, t, mesh);
        const AttentionStrategyScope scope(strategy);
        const auto found = second(in, attend(c, in, {}));
        for (std::size_t i = 0; i < 3; ++i) require(DTensor(found[i]).full_tensor(), wanted[i], c, "second derivative");
      });
    }
  }
}

TEST(AttentionCommunication, InPlaceWriteToTheResultFailsBackward) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto c = split_case(2, AttentionStrategy::ring);
    const auto in = distributed(c, tensors_of(c), mesh);
    const auto result = attend(c, in, {});
    result.detach().mul_(2);
    EXPECT_THROW(result.sum().backward(), c10::Error);
  });
}

TEST(AttentionCommunication, InvalidOptionsRaiseOnEveryRank) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto c = split_case(2, AttentionStrategy::ring);
    const auto in = distributed(c, tensors_of(c), mesh);
    const auto says = [&](const AttentionOptions& options, const std::string& part) {
      try {
        attention(in[0], in[1], in[2], options);
        ADD_FAILURE() << "no error about " << part;
      } catch (const c10::Error& e) {
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      }
    };
    AttentionOptions o;
    o.documents = {1, 5};
    says(o, "expected ascending document positions from 0, got [1, 5]");
    o = {};
    o.window = -1;
    says(o, "window -1 is negative");
    o = {};
    o.dropout = 1.5;
    says(o, "dropout 1.5 is not in [0, 1]");
    o = {};
    o.mask = at::ones({3, 24});
    says(o, "a mask of sizes [3, 24] does not broadcast to [2, 12, 24, 24]");
    o = {};
    o.sinks = at::ones({5});
    says(o, "expected sinks with one number for each of 12 heads");
  });
}

}  // namespace
}  // namespace dtensor::test
