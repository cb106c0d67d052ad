// Ghost layers of grids against the full grid: values, gradients and second derivatives; ghosts in a host's array.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <torch/torch.h>

#include "dtensor/dtensor.h"
#include "dtensor/halo.h"
#include "internal/shard_segments.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test::halo {
namespace {

// Layers of the grid's dimensions and the shards of this rank.
struct Setup {
  Shape mesh, sizes;
  Placements placements;
  std::vector<GhostLayers> layers;
};

Setup random_setup(Draw& draw) {
  const std::vector<Shape> shapes{{2}, {3}, {2, 2}, {2, 2, 2}};
  Setup s{shapes[static_cast<std::size_t>(draw.integer(0, 3))], draw.sizes(3, 1, 9), {}, {}};
  for (std::size_t axis = 0; axis < s.mesh.size(); ++axis) s.placements.push_back(Shard(draw.integer(0, 2)));
  for (std::int64_t dim = 0; dim < 3; ++dim) {
    if (draw.integer(0, 3) == 0) continue;
    const auto boundary = static_cast<Boundary>(draw.integer(0, 3));
    const auto n = s.sizes[static_cast<std::size_t>(dim)];
    const auto most = boundary == Boundary::reflect ? n - 1 : boundary == Boundary::periodic ? n : 12;
    s.layers.push_back({dim, draw.integer(0, std::min<std::int64_t>(most, 6)), draw.integer(0, most), boundary});
  }
  return s;
}

// The grid with its boundary, by concatenation of slices.
at::Tensor extended(at::Tensor grid, const std::vector<GhostLayers>& layers) {
  for (const auto& l : layers) {
    const auto n = grid.size(l.dim);
    const auto slice = [&](std::int64_t i) { return grid.narrow(l.dim, i, 1); };
    const auto beyond = [&](std::int64_t distance, bool before) {
      switch (l.boundary) {
        case Boundary::zero:
          return at::zeros_like(slice(0));
        case Boundary::replicate:
          return slice(before ? 0 : n - 1);
        case Boundary::reflect:
          return slice(before ? distance : n - 1 - distance);
        default:
          return slice(before ? n - distance : distance - 1);
      }
    };
    std::vector<at::Tensor> parts;
    for (auto i = l.before; i > 0; --i) parts.push_back(beyond(i, true));
    parts.push_back(grid);
    for (std::int64_t i = 1; i <= l.after; ++i) parts.push_back(beyond(i, false));
    grid = at::cat(parts, l.dim);
  }
  return grid;
}

// The part of a rank of the grid, or with its ghosts of the extended grid.
at::Tensor part_of(at::Tensor grid, const Setup& s, at::IntArrayRef coordinate, bool with_ghosts) {
  for (std::int64_t dim = 0; dim < 3; ++dim) {
    const auto own = shard_segments(s.sizes[static_cast<std::size_t>(dim)], dim, s.placements, s.mesh, coordinate);
    std::int64_t first = own.empty() ? 0 : own[0].offset, length = own.empty() ? 0 : own[0].length;
    for (const auto& l : s.layers) {
      if (with_ghosts && l.dim == dim && length > 0) length += l.before + l.after;
    }
    grid = grid.narrow(dim, length > 0 ? first : 0, length);
  }
  return grid;
}

std::vector<std::int64_t> coordinate_of(std::int64_t rank, const Shape& mesh) {
  std::vector<std::int64_t> coordinate(mesh.size());
  for (std::size_t axis = mesh.size(); axis-- > 0; rank /= mesh[axis]) coordinate[axis] = rank % mesh[axis];
  return coordinate;
}

// A rank's share of the loss. Each rank has weights of its own.
at::Tensor share_of_loss(const at::Tensor& with_ghosts, std::uint64_t seed, std::int64_t rank) {
  Draw draw(seed + static_cast<std::uint64_t>(rank) + 1);
  return (draw.normal(with_ghosts.sizes().vec()) * with_ghosts.pow(3)).sum();
}

RC_GTEST_PROP(GridHalo, EqualsTheFullGrid, (const std::uint32_t seed)) {
  Draw shapes(seed);
  const Setup s = random_setup(shapes);
  on_mesh(s.mesh, [&](const DeviceMesh& mesh) {
    const auto rank = mesh.communicator().rank();
    const auto own = coordinate_of(rank, s.mesh);
    const GridHalo halo(mesh, s.placements, s.sizes, s.layers);
    const auto grid = Draw(seed).normal(s.sizes).requires_grad_();
    const auto local = part_of(grid.detach(), s, own, false).clone().requires_grad_();
    const auto expected = extended(grid, s.layers), got = halo.exchange(local);
    expect_close(got.detach(), part_of(expected, s, own, true).detach(), "values", 0);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (int r = 0; r < mesh.size(); ++r) {
      loss = loss + share_of_loss(part_of(expected, s, coordinate_of(r, s.mesh), true), seed, r);
    }
    const auto derivative = [](const at::Tensor& value, const at::Tensor& of) {
      return torch::autograd::grad({value}, {of}, {}, true, true)[0];
    };
    const auto first = derivative(share_of_loss(got, seed, rank), local), full_first = derivative(loss, grid);
    expect_close(first.detach(), part_of(full_first, s, own, false).detach(), "gradients");
    const auto second = derivative(first.pow(2).sum(), local), full_second = derivative(full_first.pow(2).sum(), grid);
    expect_close(second.detach(), part_of(full_second, s, own, false).detach(), "second derivatives");
  });
}

// The host's array keeps its memory. A DTensor of its interior shares it, and operators read it there.
RC_GTEST_PROP(GridHalo, GhostsStayInTheArrayOfTheHost, (const std::uint32_t seed)) {
  Draw shapes(seed);
  const Setup s = random_setup(shapes);
  on_mesh(s.mesh, [&](const DeviceMesh& mesh) {
    const auto own = coordinate_of(mesh.communicator().rank(), s.mesh);
    const GridHalo halo(mesh, s.placements, s.sizes, s.layers);
    const auto grid = Draw(seed).normal(s.sizes), expected = part_of(extended(grid, s.layers), s, own, true);
    const auto array = at::full_like(expected, 99);
    halo.interior(array).copy_(part_of(grid, s, own, false));
    halo.update(array);
    expect_close(array, expected, "array", 0);
    const auto field = halo.from_local(array);
    EXPECT_TRUE(halo.interior(array).numel() == 0 || field.to_local().is_alias_of(array));
    expect_close(field, grid, "field", 0);
    const auto weight = Draw(seed + 1).normal({1, 1, 3, 3, 3});
    const auto convolve = [](const at::Tensor& x, const at::Tensor& w) {
      return at::conv3d(x.unsqueeze(0).unsqueeze(0), w, {}, 1, 1);
    };
    expect_close(convolve(field, distribute_tensor(weight, mesh, Placements(s.mesh.size()))), convolve(grid, weight),
                 "convolution");
  });
}

// A stencil on [4, 6] elements receives one row from each neighbor, and one row of the periodic image.
TEST(GridHalo, ExchangesOneRowWithEachNeighbor) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const GridHalo halo(mesh, {Shard(0)}, {4, 6}, {{0, 1, 1, Boundary::periodic}, {1, 1, 1}});
    std::int64_t bytes = 0;
    const EventListener listener([&](const Event& e) { bytes += e.bytes; }, {Event::Kind::collective});
    EXPECT_EQ(halo.exchange(at::ones({2, 6}, at::kDouble)).sizes(), (at::IntArrayRef{4, 8}));
    EXPECT_EQ(bytes, 2 * 6 * 8);
  });
}

void expect_text(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(GridHalo, ReportsLayersThatDoNotFit) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto text_of = [&](std::vector<GhostLayers> layers, const Placement& placement) {
      return error_of([&] { GridHalo(mesh, {placement}, {4, 6}, layers); });
    };
    expect_text(text_of({{2, 1, 1}}, Shard(0)), "expected a dimension in [0, 2), got layers of dimension 2");
    expect_text(text_of({{0, 1, 1}, {0, 1, 1}}, Shard(0)), "got two for dimension 0");
    expect_text(text_of({{0, -1, 1}}, Shard(0)), "at least 0, got -1 and 1");
    expect_text(text_of({{0, 4, 1, Boundary::reflect}}, Shard(0)),
                "expected at most 3 reflected layers for dimension 0 of size 4, got 4");
    expect_text(text_of({{1, 1, 7, Boundary::periodic}}, Shard(0)),
                "expected at most 6 periodic layers for dimension 1 of size 6, got 7");
    expect_text(text_of({{0, 1, 1}}, ZigzagShard(0)), "expected one range of dimension 0 on each rank, got 2");
    const GridHalo halo(mesh, {Shard(0)}, {4, 6}, {{0, 1, 1}});
    expect_text(error_of([&] { halo.exchange(at::ones({3, 6})); }), "expected 2 elements of dimension 0 on this rank");
    expect_text(error_of([&] {
                  halo.interior(at::ones({3, 6}));
                }),
                "expected 4 elements of dimension 0 on this rank (2 and ghosts)");
  });
}

}  // namespace
}  // namespace dtensor::test::halo
