// BucketedAllToAll: pieces of any kind, and its state after an error.
#include "internal/bucketed_all_to_all.h"

#include <gtest/gtest.h>

#include "dtensor/mesh.h"
#include "dtensor/tensor.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

// Sends a piece to the other of two ranks and returns the piece received from it.
at::Tensor swapped(BucketedAllToAll& exchange, const Communicator& world, const at::Tensor& piece) {
  const auto bucket = exchange.bucket(world, piece.scalar_type());
  const int other = 1 - world.rank();
  at::Tensor target = at::zeros_like(piece);
  exchange.send(bucket, other, piece);
  exchange.receive(bucket, other, target);
  exchange.run();
  return target;
}

TEST(Bucketed, IsReusableAfterAnError) {
  run_local(2, [](Communicator world) {
    BucketedAllToAll exchange;
    const auto bucket = exchange.bucket(world, at::kFloat);
    exchange.send(bucket, world.rank(), at::ones({2}));  // never received
    EXPECT_THROW(exchange.run(), c10::Error);
    EXPECT_TRUE(swapped(exchange, world, at::ones({3})).eq(1).all().item<bool>());
  });
}

TEST(Bucketed, RefusesInvalidBucketsAndRanks) {
  run_local(2, [](Communicator world) {
    BucketedAllToAll exchange;
    EXPECT_THROW(exchange.send(0, 0, at::ones({2})), c10::Error);
    const auto bucket = exchange.bucket(world, at::kFloat);
    EXPECT_THROW(exchange.send(bucket, 2, at::ones({2})), c10::Error);
    EXPECT_THROW(exchange.receive(bucket, -1, at::ones({2})), c10::Error);
    exchange.run();
    EXPECT_THROW(exchange.receive(bucket, 0, at::ones({2})), c10::Error);  // run() has emptied it
  });
}

TEST(Bucketed, RunsInsideAMeshScope) {
  run_local(2, [](Communicator world) {
    const auto piece = at::full({3}, world.rank());
    const MeshScope scope(init_device_mesh(world, at::kCPU, {2}));
    BucketedAllToAll exchange;
    const auto bucket = exchange.bucket(world, at::kLong);
    const at::Tensor target = at::empty_like(piece);
    exchange.send(bucket, 1 - world.rank(), piece);
    exchange.receive(bucket, 1 - world.rank(), target);
    exchange.run();
    EXPECT_EQ(target[0].item<std::int64_t>(), 1 - world.rank());
  });
}

// Any number of pieces, also to parameters, without effect on autograd.
TEST(Bucketed, FillsParametersWithoutAutograd) {
  run_local(2, [](Communicator world) {
    for (const std::size_t pieces : {1, 2}) {
      BucketedAllToAll exchange;
      const auto bucket = exchange.bucket(world, at::kFloat);
      std::vector<at::Tensor> targets;
      std::vector<std::int64_t> versions;
      const auto send = [&](int peer, const at::Tensor& target) {
        exchange.send(bucket, peer, (at::ones({2}).requires_grad_() * 3));
        exchange.receive(bucket, peer, targets.emplace_back(target));
        versions.push_back(target._version());
      };
      for (std::size_t k = 0; k < pieces; ++k) {
        send(0, at::zeros({2}).requires_grad_()), send(1, at::zeros({2}).requires_grad_());
        send(0, at::zeros({2})), send(1, at::zeros({2}));
      }
      exchange.run();
      for (std::size_t k = 0; k < targets.size(); ++k) {
        EXPECT_TRUE(targets[k].detach().eq(3).all().item<bool>());
        EXPECT_TRUE(targets[k].is_leaf());
        EXPECT_EQ(targets[k]._version(), versions[k] + 1);
      }
    }
  });
}

TEST(Bucketed, ConjugatePiecesAreSentAsBytes) {
  run_local(2, [](Communicator world) {
    const int other = 1 - world.rank();
    const at::Tensor z = at::complex(at::arange(3, at::kFloat), at::arange(3, at::kFloat) + 1);
    const at::Tensor taken = at::zeros_like(z), numbers = at::zeros({2});
    BucketedAllToAll exchange;
    const auto bucket = exchange.bucket(world, at::kByte);
    exchange.send(bucket, other, at::ones({2}));
    exchange.send(bucket, other, z.conj());
    exchange.receive(bucket, other, numbers);
    exchange.receive(bucket, other, taken);
    exchange.run();
    EXPECT_TRUE(at::equal(taken, z.conj().resolve_conj()));
    EXPECT_TRUE(numbers.eq(1).all().item<bool>());
  });
}

// All pieces are sent with the values before anything is received.
TEST(Bucketed, SentPiecesMayOverlapTargets) {
  run_local(2, [](Communicator world) {
    const int me = world.rank(), other = 1 - me;
    for (const std::int64_t parts : {1, 2}) {  // alone, and packed
      const at::Tensor x = at::arange(8, at::kFloat) + 10 * me, before = x.clone();
      BucketedAllToAll exchange;
      const auto bucket = exchange.bucket(world, at::kFloat);
      const auto move = [&](int peer, std::int64_t from, std::int64_t to, std::int64_t count) {
        exchange.send(bucket, peer, x.narrow(0, from, count));
        exchange.receive(bucket, peer, x.narrow(0, to, count));
      };
      move(me, 0, 4, 2), move(me, 4, 0, 2);  // swap two local pieces
      for (std::int64_t k = 0; k < parts; ++k) move(other, 2 + 4 * k, parts == 1 ? 2 : 6 - 4 * k, 2);
      exchange.run();
      const at::Tensor theirs = before + 10 * (other - me);
      const auto piece = [](const at::Tensor& of, std::int64_t at) { return of.narrow(0, at, 2); };
      const at::Tensor& last = parts == 1 ? before : theirs;
      const at::Tensor expected = at::cat(
          {piece(before, 4), piece(theirs, parts == 1 ? 2 : 6), piece(before, 0), piece(last, parts == 1 ? 6 : 2)});
      EXPECT_TRUE(at::equal(x, expected)) << parts << "\n" << x << "\n" << expected;
    }
  });
}

// Four ranks in a square: x is received in the row while its previous value is sent in the column.
TEST(Bucketed, SentPiecesMayOverlapTargetsOfAnotherBucket) {
  run_local(4, [](Communicator world) {
    const int me = world.rank(), row = me / 2, column = me % 2;
    const Communicator across = world.split(row, me), down = world.split(2 + column, me);
    const auto value = [](int rank, int what) { return at::full({3}, 10.0 * rank + what); };
    for (const bool alone : {true, false}) {  // from this rank itself, or from the neighbor
      const int there = alone ? column : 1 - column, below = alone ? row : 1 - row;
      const at::Tensor x = value(me, 1), y = value(me, 2), z = at::zeros({3});
      BucketedAllToAll exchange;
      const auto first = exchange.bucket(across, at::kFloat), second = exchange.bucket(down, at::kFloat);
      exchange.send(first, there, y);
      exchange.receive(first, there, x);
      exchange.send(second, below, x);
      exchange.receive(second, below, z);
      exchange.run();
      EXPECT_TRUE(at::equal(x, value(2 * row + there, 2))) << alone << "\n" << x;
      EXPECT_TRUE(at::equal(z, value(2 * below + column, 1))) << alone << "\n" << z;
    }
  });
}

// A mismatch in the second bucket is reported before the targets of the first are written.
TEST(Bucketed, WritesNothingIfALaterBucketMismatches) {
  run_local(2, [](Communicator world) {
    BucketedAllToAll exchange;
    const auto good = exchange.bucket(world, at::kFloat), bad = exchange.bucket(world, at::kLong);
    const at::Tensor target = at::zeros({2});
    exchange.send(good, world.rank(), at::ones({2}));
    exchange.receive(good, world.rank(), target);
    exchange.send(bad, world.rank(), at::ones({2}, at::kLong));
    exchange.receive(bad, world.rank(), at::zeros({3}, at::kLong));
    EXPECT_THROW(exchange.run(), c10::Error);
    EXPECT_TRUE(target.eq(0).all().item<bool>());
    EXPECT_TRUE(swapped(exchange, world, at::ones({3})).eq(1).all().item<bool>());
  });
}

TEST(Bucketed, RefusesLocalBucketsWithRemotePiecesAndSizeMismatches) {
  run_local(2, [](Communicator world) {
    BucketedAllToAll exchange;
    const auto alone = exchange.bucket(world, at::kFloat, /*remote=*/false);
    exchange.send(alone, 1 - world.rank(), at::ones({2}));
    exchange.receive(alone, 1 - world.rank(), at::zeros({2}));
    EXPECT_THROW(exchange.run(), c10::Error);
    const auto bucket = exchange.bucket(world, at::kFloat);
    const at::Tensor target = at::zeros({4});
    exchange.send(bucket, world.rank(), at::ones({1}));
    exchange.receive(bucket, world.rank(), target);
    EXPECT_THROW(exchange.run(), c10::Error);
    EXPECT_TRUE(target.eq(0).all().item<bool>());
  });
}

}  // namespace
}  // namespace dtensor::test
