// Redistribution from any mesh to any other on thread ranks: values, gradients and received bytes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/autograd/autograd.h>
#include <numeric>

#include "dtensor/events.h"
#include "internal/shard_segments.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using test::Draw;
using test::Shape;

constexpr int kWorld = 6;

struct Place {
  DeviceMesh mesh;
  Placements placements;
};

Place draw_place(Draw& draw, const Communicator& world, const Shape& sizes, bool partial) {
  static const std::vector<Shape> shapes{{1}, {2}, {3}, {4}, {2, 2}, {2, 3}};
  const Shape shape = shapes[static_cast<std::size_t>(draw.integer(0, static_cast<std::int64_t>(shapes.size()) - 1))];
  std::vector<std::int64_t> ranks(kWorld);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (auto i = kWorld - 1; i > 0; --i) std::swap(ranks[i], ranks[draw.integer(0, i)]);
  ranks.resize(static_cast<std::size_t>(test::count(shape)));
  const DeviceMesh mesh = device_mesh(world, at::kCPU, ranks, shape);
  return {mesh, draw.placements_of(mesh, sizes, partial)};
}

// The elements of a rank's shard by definition, one by one.
at::Tensor part_of(const Place& place, const at::Tensor& unsharded) {
  at::Tensor part = unsharded;
  for (std::int64_t d = 0; d < unsharded.dim(); ++d) {
    std::vector<at::Tensor> indices{at::empty({0}, at::kLong)};
    for (const Segment& s :
         shard_segments(unsharded.size(d), d, place.placements, place.mesh.shape(), *place.mesh.coordinate())) {
      indices.push_back(at::arange(s.offset, s.offset + s.length, at::kLong));
    }
    part = part.index_select(d, at::cat(indices));
  }
  return part;
}

std::int64_t lacked(const Place& from, const Place& to, const at::Tensor& unsharded) {
  if (!to.mesh.is_member()) return 0;
  const auto numbers = at::arange(unsharded.numel()).view(unsharded.sizes());
  const auto wanted = part_of(to, numbers).reshape({-1});
  if (!from.mesh.is_member()) return wanted.numel();
  return wanted.numel() - at::isin(wanted, part_of(from, numbers).reshape({-1})).sum().item<std::int64_t>();
}

bool has_partial(const Placements& placements) {
  return std::any_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_partial(); });
}

TEST(BetweenMeshes, RandomPairsAreExactAndMoveOnlyMissingElements) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    run_local(kWorld, [&](const Communicator& world) {
      Draw draw(seed);
      const Shape sizes = draw.sizes(draw.integer(0, 3));
      at::Tensor unsharded = draw.normal(sizes).round();  // Sums of integers are exact.
      const Place from = draw_place(draw, world, sizes, seed % 3 == 0),
                  to = draw_place(draw, world, sizes, seed % 5 == 0);
      const DTensor source = distribute_tensor(unsharded, from.mesh, from.placements);
      std::int64_t bytes = 0;
      DTensor moved;
      {
        const EventListener listener([&](const Event& e) { bytes += e.bytes; }, {Event::Kind::collective});
        moved = source.redistribute(to.mesh, to.placements);
      }
      const std::string what = c10::str("seed ", seed, ": ", source.spec_str(), " to ", moved.spec_str());
      ASSERT_EQ(moved.mesh(), to.mesh) << what;
      ASSERT_EQ(moved.placements(), to.placements) << what;
      if (to.mesh.is_member()) {
        EXPECT_TRUE(moved.full_tensor().equal(unsharded)) << what;
      }
      if (to.mesh.is_member() && !has_partial(to.placements)) {
        EXPECT_TRUE(moved.to_local().equal(part_of(to, unsharded))) << what;
      }
      const bool same = from.mesh == to.mesh;
      if (!same && !has_partial(from.placements)) {
        EXPECT_EQ(bytes, 8 * lacked(from, to, unsharded)) << what;
      }
    });
  }
}

TEST(BetweenMeshes, GradientsAreRedistributedBack) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    run_local(kWorld, [&](const Communicator& world) {
      Draw draw(seed + 1000);
      const Shape sizes = draw.sizes(draw.integer(1, 3), 1);
      const at::Tensor a = draw.normal(sizes), b = draw.normal(sizes);
      const Place from = draw_place(draw, world, sizes, false), to = draw_place(draw, world, sizes, false);
      const at::Tensor x = distribute_tensor(a, from.mesh, from.placements).requires_grad_();
      const at::Tensor y = distribute_tensor(b, from.mesh, from.placements).requires_grad_();
      const auto moved = redistribute({DTensor(x), DTensor(y)}, to.mesh, {to.placements, to.placements});
      // Only part of the second tensor is used.
      (moved[0] * moved[0] * moved[1]).sum().backward();
      if (!from.mesh.is_member()) return;
      test::expect_close(x.grad(), 2 * a * b, c10::str("seed ", seed, " dx of ", DTensor(x).spec_str()));
      test::expect_close(y.grad(), a * a, c10::str("seed ", seed, " dy"));
      EXPECT_EQ(DTensor(x.grad()).placements(), from.placements);
    });
  }
}

TEST(BetweenMeshes, AListOfDtypesIsOneExchange) {
  run_local(4, [](const Communicator& world) {
    const DeviceMesh left = device_mesh(world, at::kCPU, {0, 1}, {2}),
                     right = device_mesh(world, at::kCPU, {3, 2, 1}, {3});
    Draw draw(5);
    const std::vector<at::Tensor> originals{draw.normal({5, 3}), draw.normal({7}).to(at::kBFloat16),
                                            draw.integers({4, 4}, 9), draw.normal({2, 2}) > 0,
                                            at::complex(draw.normal({6}), draw.normal({6}))};
    std::vector<DTensor> tensors;
    for (const auto& unsharded : originals) tensors.push_back(distribute_tensor(unsharded, left, {Shard(0)}));
    int collectives = 0;
    std::vector<DTensor> moved;
    {
      const EventListener listener([&](const Event&) { ++collectives; }, {Event::Kind::collective});
      moved = redistribute(tensors, right, std::vector<Placements>(tensors.size(), {Shard(0)}));
    }
    EXPECT_EQ(collectives, world.rank() <= 3 ? 1 : 0);
    for (std::size_t i = 0; i < originals.size(); ++i) {
      if (right.is_member()) {
        EXPECT_TRUE(moved[i].full_tensor().equal(originals[i])) << i;
      }
    }
  });
}

TEST(BetweenMeshes, SourcesOfOneListMayBeOnSeveralMeshes) {
  run_local(4, [](const Communicator& world) {
    const DeviceMesh a = device_mesh(world, at::kCPU, {0, 1}, {2}), b = device_mesh(world, at::kCPU, {2, 3}, {2}),
                     all = init_device_mesh(world, at::kCPU, {2, 2});
    Draw draw(6);
    const at::Tensor p = draw.normal({5, 3}), q = draw.normal({4});
    const at::Tensor x = distribute_tensor(p, a, {Shard(1)}).requires_grad_(),
                     y = distribute_tensor(q, b, {Replicate()}).requires_grad_();
    const auto moved = redistribute({DTensor(x), DTensor(y)}, all, {{Shard(0), Replicate()}, {Replicate(), Shard(0)}});
    EXPECT_TRUE(moved[0].full_tensor().equal(p));
    EXPECT_TRUE(moved[1].full_tensor().equal(q));
    (moved[0].sum() * moved[1].sum()).backward();
    if (a.is_member()) test::expect_close(x.grad(), at::ones_like(p) * q.sum(), "dx");
    if (b.is_member()) test::expect_close(y.grad(), at::ones_like(q) * p.sum(), "dy");
  });
}

TEST(BetweenMeshes, SecondDerivativesEqualOneDevice) {
  run_local(3, [](const Communicator& world) {
    const DeviceMesh left = device_mesh(world, at::kCPU, {0, 1}, {2}),
                     right = device_mesh(world, at::kCPU, {1, 2}, {2});
    Draw draw(7);
    const at::Tensor a = draw.normal({5});
    const at::Tensor x = distribute_tensor(a, left, {Shard(0)}).requires_grad_();
    const at::Tensor y = DTensor(x).redistribute(right, {Replicate()});
    const at::Tensor dx = torch::autograd::grad({(y * y * y).sum()}, {x}, {}, true, true)[0];
    dx.sum().backward();
    if (left.is_member()) test::expect_close(x.grad(), 6 * a, "d2x");
  });
}

TEST(BetweenMeshes, RegularGradientsAreAccepted) {
  run_local(3, [](const Communicator& world) {
    const DeviceMesh left = device_mesh(world, at::kCPU, {0, 1}, {2}),
                     right = device_mesh(world, at::kCPU, {1, 2}, {2});
    const at::Tensor x = distribute_tensor(at::ones({5}), left, {Shard(0)}).requires_grad_();
    const at::Tensor y = DTensor(x).redistribute(right, {Shard(0)});
    y.backward(at::full({5}, 3.0f));
    if (left.is_member()) test::expect_close(x.grad(), at::full({5}, 3.0f), "dx");
  });
}

TEST(BetweenMeshes, DistributeTensorAcceptsDTensorsOfOtherMeshes) {
  run_local(3, [](const Communicator& world) {
    const DeviceMesh left = device_mesh(world, at::kCPU, {0, 1}, {2}), right = device_mesh(world, at::kCPU, {2}, {1});
    const at::Tensor unsharded = at::arange(5);
    const DTensor moved = distribute_tensor(distribute_tensor(unsharded, left, {Shard(0)}), right, {Replicate()});
    if (right.is_member()) {
      EXPECT_TRUE(moved.to_local().equal(unsharded));
    }
  });
}

TEST(BetweenMeshes, RefusesInvalidArguments) {
  run_local(2, [](const Communicator& world) {
    const DeviceMesh left = device_mesh(world, at::kCPU, {0}, {1}), right = device_mesh(world, at::kCPU, {1}, {1});
    const DTensor x = distribute_tensor(at::ones({2}), left, {Replicate()});
    EXPECT_THROW(x.redistribute(right, {Shard(1)}), c10::Error);
    EXPECT_THROW(x.redistribute(DeviceMesh(), {Replicate()}), c10::Error);
    EXPECT_THROW(redistribute({x}, right, {}), c10::Error);
  });
}

}  // namespace
}  // namespace dtensor
