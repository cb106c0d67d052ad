// ZigzagShard in operators: exact, kept where Shard would be kept, and right by global index.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "dtensor/dtensor.h"
#include "dtensor/events.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

struct Traffic {
  int collectives = 0;
  std::int64_t bytes = 0;  // Received by this rank.
};

template <class Body>
Traffic traffic_of(const Body& body) {
  Traffic traffic;
  const EventListener listener(
      [&](const Event& event) {
        ++traffic.collectives;
        traffic.bytes += event.bytes;
      },
      {Event::Kind::collective});
  body();
  return traffic;
}

// Indices of `n` that rank `r` of `ranks` has, from the definition.
std::vector<std::int64_t> head_and_tail(std::int64_t n, std::int64_t ranks, std::int64_t r) {
  std::vector<std::int64_t> begin{0}, held;
  for (std::int64_t c = 0; c < 2 * ranks; ++c) begin.push_back(begin.back() + n / (2 * ranks) + (c < n % (2 * ranks)));
  for (const std::int64_t c : {r, 2 * ranks - 1 - r}) {
    for (std::int64_t i = begin[c]; i < begin[c + 1]; ++i) held.push_back(i);
  }
  return held;
}

RC_GTEST_PROP(Zigzag, DistributesAndGathersExactly, ()) {
  const auto ranks = *rc::gen::inRange(2, 5);
  const auto rows = *rc::gen::inRange<std::int64_t>(0, 20), columns = *rc::gen::inRange<std::int64_t>(0, 3);
  on_mesh({ranks}, [&](const DeviceMesh& mesh) {
    const at::Tensor full = at::arange(rows * columns, at::kDouble).view({rows, columns});
    const DTensor x = distribute_tensor(full, mesh, {ZigzagShard(0)});
    const auto mine = at::tensor(head_and_tail(rows, ranks, mesh.communicator().rank()), at::kLong);
    RC_ASSERT(at::equal(x.to_local(), full.index_select(0, mine)));
    RC_ASSERT(at::equal(x.full_tensor(), full));
    RC_ASSERT(at::equal(DTensor::from_local(x.to_local(), mesh, {ZigzagShard(0)}).full_tensor(), full));
    RC_ASSERT(parse_placements(to_string(x.placements())) == x.placements());
    const DTensor there = x.redistribute({Shard(0)}), back = there.redistribute({ZigzagShard(0)});
    RC_ASSERT(at::equal(there.to_local(), distribute_tensor(full, mesh, {Shard(0)}).to_local()));
    RC_ASSERT(at::equal(back.to_local(), x.to_local()));
  });
}

// Between zigzag and contiguous shards each rank receives exactly the elements that it lacks.
TEST(Zigzag, MovesTheSetDifferenceToAndFromShards) {
  for (const std::int64_t ranks : {2, 3, 4}) {
    for (const std::int64_t rows : {1, 7, 16, 64}) {
      on_mesh({ranks}, [&](const DeviceMesh& mesh) {
        const auto rank = mesh.communicator().rank();
        const at::Tensor full = at::arange(rows * 3, at::kFloat).view({rows, 3});
        const DTensor zigzag = distribute_tensor(full, mesh, {ZigzagShard(0)});
        const DTensor chunks = distribute_tensor(full, mesh, {Shard(0)});
        const auto a = head_and_tail(rows, ranks, rank);
        const std::int64_t each = (rows + ranks - 1) / ranks;
        const std::int64_t begin = std::min(rows, each * rank), end = std::min(rows, each * (rank + 1));
        const auto both = std::count_if(a.begin(), a.end(), [&](auto i) { return i >= begin && i < end; });
        const auto there = traffic_of([&] { zigzag.redistribute({Shard(0)}); });
        const auto back = traffic_of([&] { chunks.redistribute({ZigzagShard(0)}); });
        EXPECT_EQ(there.bytes, (end - begin - both) * 12);
        EXPECT_EQ(back.bytes, (std::ssize(a) - both) * 12);
        EXPECT_LE(there.collectives, 1);
      });
    }
  }
}

// Operators of a transformer except attention need no communication.
TEST(Zigzag, LayersKeepItWithoutCommunication) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Draw draw(1);
    const at::Tensor x = draw.normal({2, 9, 8}), w = draw.normal({8, 6}), table = draw.normal({11, 8});
    const at::Tensor ids = draw.integers({2, 9}, 11);
    const Placements z{ZigzagShard(1)};
    const auto layers = [](const at::Tensor& in, const at::Tensor& weight) {
      const at::Tensor h = at::gelu(at::layer_norm(in, {8}).matmul(weight)) * 2 + 1;
      return at::softmax(h, -1).unflatten(-1, {2, 3}).transpose(1, 2).transpose(1, 2).flatten(2);
    };
    const at::Tensor dx = distribute_tensor(x, mesh, z), dw = distribute_tensor(w, mesh, {Replicate()});
    const at::Tensor dt = distribute_tensor(table, mesh, {Replicate()}), dids = distribute_tensor(ids, mesh, z);
    at::Tensor y, e, rows, again;
    const auto traffic = traffic_of([&] {
      y = layers(dx, dw);
      e = at::embedding(dt, dids);
      rows = y.flatten(0, 1);
      again = rows.unflatten(0, {2, 9});
    });
    EXPECT_EQ(traffic.collectives, 0);
    EXPECT_EQ(DTensor(y).placements(), z);
    EXPECT_EQ(DTensor(e).placements(), z);
    EXPECT_EQ(DTensor(rows).placements(), (Placements{ZigzagShard(0, 2)}));
    EXPECT_EQ(DTensor(again).placements(), z);
    expect_close(y, layers(x, w), "layers");
    expect_close(again, layers(x, w), "flattened and back");
    expect_close(e, at::embedding(table, ids), "embedding");
  });
}

// A batch split on another axis, and shards of the sequence that are split again (sequence parallelism).
TEST(Zigzag, FlattensBesideOtherAxes) {
  for (const Placements& placements : std::vector<Placements>{{Shard(0), ZigzagShard(1)},
                                                              {ZigzagShard(1), Shard(0)},
                                                              {ZigzagShard(1), Shard(1)},
                                                              {Shard(1), ZigzagShard(1)}}) {
    for (const std::int64_t length : {8, 11}) {
      on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
        Draw draw(2);
        const at::Tensor x = draw.normal({4, length, 3});
        const at::Tensor flat = at::Tensor(distribute_tensor(x, mesh, placements)).flatten(0, 1);
        expect_close(flat.flatten(), x.flatten(), to_string(placements));
      });
    }
  }
}

TEST(Zigzag, FlatteningABatchMovesNothing) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    Draw draw(2);
    const at::Tensor x = draw.normal({4, 10, 3});
    const at::Tensor placed = distribute_tensor(x, mesh, {Shard(0), ZigzagShard(1)});
    at::Tensor flat;
    EXPECT_EQ(traffic_of([&] { flat = placed.flatten(0, 1); }).collectives, 0);
    EXPECT_EQ(DTensor(flat).placements(), (Placements{Shard(0), ZigzagShard(0, 2)}));
  });
}

// Next-token loss, its gradients, and values that depend on the position.
RC_GTEST_PROP(Zigzag, PositionsAreGlobal, ()) {
  const auto shape = *rc::gen::elementOf(std::vector<Shape>{{2}, {3}, {4}, {2, 2}});
  const auto length = *rc::gen::inRange<std::int64_t>(1, 19), batch = *rc::gen::inRange<std::int64_t>(1, 4);
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    const at::Tensor x = draw.normal({batch, length, 4}), targets = draw.integers({batch, length}, 4);
    Placements z(shape.size(), ZigzagShard(1));
    if (shape.size() == 2 && draw.coin()) z[0] = Shard(0);
    const auto model = [&](const at::Tensor& in, const at::Tensor& goals) {
      const at::Tensor position = at::arange(length, at::kDouble).unsqueeze(1);
      const at::Tensor turned = in * position.cos() + in.flip({2}) * position.sin();
      const at::Tensor scanned = turned.cumsum(1) + at::logcumsumexp(turned, 1);
      return at::cross_entropy_loss(scanned.flatten(0, 1), goals.flatten(), {}, at::Reduction::Mean, 1);
    };
    const at::Tensor regular = x.clone().requires_grad_();
    const at::Tensor loss = model(regular, targets);
    loss.backward();
    const at::Tensor mine = at::Tensor(distribute_tensor(x, mesh, z)).requires_grad_();
    const at::Tensor ours = model(mine, distribute_tensor(targets, mesh, z));
    ours.backward();
    expect_close(ours, loss, "loss");
    expect_close(mine.grad(), regular.grad(), "gradient");
    expect_close(at::Tensor(distribute_tensor(x, mesh, z)).narrow(1, length / 2, length - length / 2),
                 x.narrow(1, length / 2, length - length / 2), "cut");
  });
}

// Random numbers depend on the global index only, so they do not depend on the layout.
TEST(Zigzag, DropoutMatchesContiguousShard) {
  const auto dropped = [](const Placement& p) {
    at::Tensor full;
    on_mesh({3}, [&](const DeviceMesh& mesh) {
      manual_seed(mesh, 5);
      const at::Tensor x = distribute_tensor(at::ones({4, 17}), mesh, {p});
      const at::Tensor y = DTensor(at::dropout(x, 0.5, true)).full_tensor();
      if (mesh.communicator().rank() == 0) full = y;
    });
    return full;
  };
  const at::Tensor expected = dropped(Replicate());
  EXPECT_TRUE(at::equal(dropped(ZigzagShard(1)), expected));
  EXPECT_TRUE(at::equal(dropped(Shard(1)), expected));
}

}  // namespace
}  // namespace dtensor::test
