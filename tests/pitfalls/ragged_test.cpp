// RaggedShard with given sizes, and blocks that are not split. They round-trip, operators keep them without
// communication where they would keep chunks, and fully_shard stores parameters in them.
#include <rapidcheck.h>

#include "all_placements.h"
#include "dtensor/debug.h"
#include "dtensor/fully_shard.h"

namespace dtensor::test {
namespace {

// Half of the time a view of a wider tensor.
at::Tensor any_strides(Draw& draw, const at::Tensor& value) {
  return draw.coin() ? value : value.unsqueeze(-1).repeat_interleave(2, -1).select(-1, 0);
}

TEST(Ragged, FullTensorIsTheSource) {
  EXPECT_TRUE(rc::check([] {
    const auto seed = *rc::gen::inRange<std::uint64_t>(0, 1 << 20);
    const auto& mesh_shape = *rc::gen::elementOf(mesh_shapes());
    on_mesh(mesh_shape, [&](const DeviceMesh& mesh) {
      Draw draw(seed);
      const Shape sizes = draw.sizes(draw.integer(1, 3), 0, 9);
      const auto source = any_strides(draw, draw.normal(sizes));
      const auto placements = draw.placements_of(mesh, sizes), others = draw.placements_of(mesh, sizes);
      const DTensor x = distribute_tensor(source, mesh, placements);
      const auto what = to_string(placements) + " -> " + to_string(others);
      expect_close(x, source, what, 0);
      expect_close(x.redistribute(others), source, what, 0);
      const DTensor again = DTensor::from_local(x.to_local(), mesh, placements);
      ASSERT_EQ(again.sizes(), source.sizes()) << what;
      expect_close(again, source, what, 0);
    });
  }));
}

TEST(Ragged, OperatorsKeepRaggedShards) {
  on_mesh({3}, [](const DeviceMesh& mesh) {
    Draw draw(1);
    const Placements ragged{RaggedShard(0, {5, 0, 4})};
    const at::Tensor source = draw.normal({9, 6}), weight = draw.normal({6, 4});
    const auto x = distribute_tensor(source, mesh, ragged), w = distribute_tensor(weight, mesh, {Replicate()});
    const auto keeps = [&](const char* what, const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& fn,
                           const Placements& expected) {
      const CommDebugMode comm;
      const DTensor y(fn(x, w));
      EXPECT_EQ(comm.total().calls, 0) << what;
      EXPECT_EQ(y.placements(), expected) << what;
      expect_close(y, fn(source, weight), what);
    };
    keeps(
        "gelu", [](auto& a, auto&) { return at::gelu(a) * 2 + a; }, ragged);
    keeps(
        "mm", [](auto& a, auto& b) { return at::mm(a, b); }, ragged);
    keeps(
        "sum", [](auto& a, auto&) { return a.sum(1); }, ragged);
    keeps(
        "softmax", [](auto& a, auto&) { return at::softmax(a, -1); }, ragged);
    keeps("transpose", [](auto& a, auto&) { return a.t().exp(); }, {RaggedShard(1, {5, 0, 4})});
    keeps("flatten", [](auto& a, auto&) { return a.flatten(); }, {RaggedShard(0, {30, 0, 24})});
    keeps(
        "unflatten",
        [](auto& a, auto&) {
          return a.flatten().view({9, 2, 3});
        },
        ragged);
    keeps(
        "zeros_like", [](auto& a, auto&) { return at::zeros_like(a); }, ragged);
    keeps("column sums", [](auto& a, auto&) { return a.sum(0); }, {Partial()});
    expect_close(x.cumsum(0), source.cumsum(0), "cumsum");
    x.mul_(2);
    EXPECT_EQ(DTensor(x).placements(), ragged);
    expect_close(x, source * 2, "mul_");
  });
}

TEST(Ragged, RandomFillsMatchSingleDevice) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    manual_seed(mesh, 5);
    const auto full = randn({7, 3}, mesh, {Replicate()});
    manual_seed(mesh, 5);
    expect_close(randn({7, 3}, mesh, {RaggedShard(0, {6, 1})}), DTensor(full).full_tensor(), "randn", 0);
  });
}

TEST(Ragged, InvalidSizesAreErrors) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto error = [&](const Placements& placements) {
      try {
        distribute_tensor(at::zeros({9}), mesh, placements);
      } catch (const c10::Error& e) {
        return std::string(e.what_without_backtrace());
      }
      return std::string();
    };
    EXPECT_NE(error({RaggedShard(0, {3, 5})}).find("expected their sum 8 as the size of the dimension, got 9"),
              std::string::npos);
    EXPECT_NE(error({RaggedShard(0, {3, 5, 1})}).find("has sizes for 3 ranks"), std::string::npos);
  });
}

// Two training steps with blocks of 4 rows that no rank splits, on (replicate, shard) meshes.
TEST(Ragged, FullyShardKeepsBlocks) {
  const auto train = [](std::vector<at::Tensor> weights, const at::Tensor& x) {
    for (int step = 0; step < 2; ++step) {
      at::linear(at::tanh(at::linear(x, weights[0])), weights[1]).square().mean().backward();
      const at::NoGradGuard no_grad;
      for (auto& w : weights) {
        w.sub_(w.grad(), 0.1);
        w.mutable_grad() = at::Tensor();
      }
    }
    return weights;
  };
  for (const Shape& shape : {Shape{1, 2}, Shape{1, 3}, Shape{2, 2}}) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      Draw draw(3);
      std::vector<at::Tensor> regular{draw.normal({10, 3}), draw.normal({5, 10})}, sharded;
      for (auto& w : regular) sharded.push_back(w.clone().requires_grad_());
      for (auto& w : regular) w.requires_grad_();
      NamedTensors names{{"up", &sharded[0]}, {"down", &sharded[1]}};
      FsdpOptions options;
      options.shard_block = [](const std::string& name, const at::Tensor&) { return name == "up" ? 4 : 1; };
      fully_shard(names, mesh, options);
      const Placement expected = BlockShard(0, 10, 4, mesh.size(1)).as_storage();
      EXPECT_EQ(DTensor(sharded[0]).placements()[1], expected);
      const auto x = draw.normal({6, 3});
      const auto want = train(regular, x), got = train(sharded, distribute_tensor(x, mesh, {Shard(0), Shard(0)}));
      for (std::size_t k = 0; k < want.size(); ++k) expect_close(got[k].detach(), want[k].detach(), "weight");
      EXPECT_EQ(DTensor(sharded[0]).placements()[1], expected);
    });
  }
}

}  // namespace
}  // namespace dtensor::test
