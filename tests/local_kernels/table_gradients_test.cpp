// Gradients of row-split tables: each rank computes the gradient of its own rows only, equal to one device for every
// placement, with padding rows on other shards and counts of repeated indices.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "dtensor/debug.h"
#include "dtensor/inspect.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

struct Lookup {
  explicit Lookup(Draw& draw)
      : rows(draw.integer(1, 9)),
        width(draw.integer(1, 4)),
        table(draw.normal({rows, width})),
        indices(draw.integers(draw.sizes(draw.integer(1, 2)), rows)),
        padding(draw.coin() ? draw.integer(0, rows - 1) : -1),
        by_count(draw.coin()) {}
  std::int64_t rows, width;
  at::Tensor table, indices;
  std::int64_t padding;
  bool by_count;

  at::Tensor run(const at::Tensor& weight, const at::Tensor& positions) const {
    return at::embedding(weight, positions, padding, by_count).sin();
  }
};

// Rows are split on one axis; the other axes are arbitrary.
Placements rows_split(Draw& draw, const DeviceMesh& mesh) {
  auto placements = draw.placements(mesh, 2, false);
  placements[static_cast<std::size_t>(draw.integer(0, mesh.ndim() - 1))] = Shard(0);
  return placements;
}

RC_GTEST_PROP(TableGradients, OfEmbeddingEqualOneDevice, ()) {
  const auto shape = *rc::gen::elementOf(mesh_shapes());
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    const Lookup look(draw);
    const auto regular = look.table.clone().requires_grad_();
    const auto placements = rows_split(draw, mesh);
    const auto weight = distribute_tensor(look.table.clone(), mesh, placements).requires_grad_();
    const auto positions = distribute_tensor(look.indices, mesh, draw.placements(mesh, look.indices.dim(), false));
    const auto cast = draw.coin();
    const auto used = [&](const at::Tensor& w) { return cast ? w.to(at::kFloat) : w; };
    const auto expected = look.run(used(regular), look.indices), actual = look.run(used(weight), positions);
    const auto what = c10::str(to_string(placements), " ", DTensor(positions).spec_str(), " padding ", look.padding);
    expect_close(actual.detach(), expected.detach(), what, 1e-5);
    expected.cos().sum().backward();
    actual.cos().sum().backward();
    expect_close(weight.grad(), regular.grad(), what + " grad", cast ? 1e-5 : 1e-9);
    EXPECT_EQ(DTensor(weight.grad()).placements(), placements);
  });
  RC_ASSERT(!testing::Test::HasFailure());
}

RC_GTEST_PROP(TableGradients, OfEmbeddingBagEqualOneDevice, ()) {
  const auto shape = *rc::gen::elementOf(mesh_shapes());
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    const auto rows = draw.integer(1, 9), width = draw.integer(1, 4), count = draw.integer(1, 12);
    const auto mode = draw.integer(0, 2), padding = draw.coin() ? draw.integer(0, rows - 1) : -1;
    const bool weighted = mode == 0 && draw.coin(), by_count = mode != 2 && draw.coin();
    const auto table = draw.normal({rows, width}), factors = draw.normal({count});
    const auto indices = draw.integers({count}, rows);
    const auto offsets = at::cat({at::zeros({1}, at::kLong), std::get<0>(draw.integers({2}, count).sort())});
    const auto run = [&](const at::Tensor& w, const at::Tensor& i, const at::Tensor& o, const at::Tensor& f) {
      const std::optional<at::Tensor> per_sample = weighted ? std::optional<at::Tensor>(f) : std::nullopt;
      return std::get<0>(at::embedding_bag(w, i, o, by_count, mode, false, per_sample, false, padding)).sin();
    };
    const Placements full(static_cast<std::size_t>(mesh.ndim()));
    const auto regular = table.clone().requires_grad_();
    const auto placements = rows_split(draw, mesh);
    const auto weight = distribute_tensor(table.clone(), mesh, placements).requires_grad_();
    const auto on = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, full); };
    const auto regular_factors = factors.clone().requires_grad_(), split_factors = on(factors).requires_grad_();
    const auto expected = run(regular, indices, offsets, regular_factors);
    const auto actual = run(weight, on(indices), on(offsets), split_factors);
    const auto what = c10::str(to_string(placements), " mode ", mode, " padding ", padding, " ", indices, offsets);
    expect_close(actual.detach(), expected.detach(), what);
    expected.cos().sum().backward();
    actual.cos().sum().backward();
    expect_close(weight.grad(), regular.grad(), what + " grad");
    if (weighted) expect_close(split_factors.grad(), regular_factors.grad(), what + " grad of the factors");
  });
  RC_ASSERT(!testing::Test::HasFailure());
}

// The peak of both passes is below half the table, although the table or its gradient would take all of it.
TEST(TableGradients, NoRankAllocatesTheFullTable) {
  constexpr std::int64_t kRows = 1 << 16, kWidth = 8, kFull = kRows * kWidth * 4;
  for (const bool bag : {false, true}) {
    on_mesh({4}, [&](const DeviceMesh& mesh) {
      const auto weight = distribute_tensor(at::ones({kRows, kWidth}), mesh, {Shard(0)}).requires_grad_();
      const auto indices = distribute_tensor(at::arange(16) * 1000, mesh, {Replicate()});
      const auto offsets = distribute_tensor(at::arange(4) * 4, mesh, {Replicate()});
      const MemoryTimeline timeline;
      const auto y = bag ? std::get<0>(at::embedding_bag(weight, indices, offsets)) : at::embedding(weight, indices);
      y.sum().backward();
      EXPECT_LT(timeline.peak().bytes, kFull / 2) << (bag ? "bag" : "lookup");
      EXPECT_EQ(DTensor(weight.grad()).placements(), Placements{Shard(0)});
    });
  }
}

// The preference is part of the cache key: a replicated table gets a replicated gradient. Gradients of rows are summed
// on their own ranks.
TEST(TableGradients, GradientHasThePlacementOfTheTable) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto indices = distribute_tensor(at::arange(6), mesh, {Replicate()});
    const auto look = [&](const at::Tensor& weight, bool bag) {
      return bag ? std::get<0>(at::embedding_bag(weight, indices, indices)) : at::embedding(weight, indices);
    };
    for (const auto& p : {Placement(Shard(0)), Replicate(), Shard(1), Placement(Shard(0))}) {
      for (const bool bag : {false, true}) {
        const auto weight = distribute_tensor(at::ones({8, 4}), mesh, {p}).requires_grad_();
        const auto text = explain([&] { look(weight, bag).sum().backward(); }, Explain::decisions);
        const bool by_rows = text.find("* shard v") != std::string::npos;
        EXPECT_EQ(by_rows, p == Shard(0)) << text;
        EXPECT_EQ(text.find("* shard v") != text.rfind("* shard v"), by_rows) << "forward and backward: " << text;
        expect_close(weight.grad(), at::cat({at::ones({6, 4}), at::zeros({2, 4})}), "grad");
      }
    }
  });
}

}  // namespace
}  // namespace dtensor::test
