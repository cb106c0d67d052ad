// MeshScope: factories, also in third-party modules, create tensors on the mesh with the values of one device.
#include <torch/nn.h>

#include "internal/aten_scopes.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

TEST(MeshScope, FactoriesMatchSingleDevice) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    const MeshScope scope(mesh, {Shard(0), Shard(1)});
    const auto ones = at::ones({5, 5});
    ASSERT_TRUE(is_dtensor(ones));
    EXPECT_EQ(DTensor(ones).placements(), (Placements{Shard(0), Shard(1)}));
    EXPECT_EQ(DTensor(ones.tril()).full_tensor().sum().item<double>(), 15);
    const auto steps = at::arange(7);
    EXPECT_EQ(DTensor(steps).placements(), (Placements{Shard(0), Replicate()}));  // A dimension that it lacks.
    expect_close(at::eye(4, at::kDouble) * 2, DTensor(at::eye(4, at::kDouble)).full_tensor() * 2, "eye");
    EXPECT_EQ(DTensor(steps).full_tensor().select(0, 6).item<std::int64_t>(), 6);
    expect_close(at::full({3, 2}, 2.5, at::kDouble), DTensor(at::full({3, 2}, 2.5, at::kDouble)).full_tensor(), "full");
  });
}

TEST(MeshScope, FactoriesOnPartialAxesMatchSingleDevice) {
  for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::product}) {
    on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
      const Placements placements{Partial(op), Shard(0)};
      manual_seed(mesh, 5);
      const auto drawn = randn({3, 2}, mesh, {Replicate(), Shard(0)}, at::kDouble).full_tensor();
      manual_seed(mesh, 5);
      std::vector<DTensor> made;
      {
        const MeshScope scope(mesh, placements);
        const auto options = at::TensorOptions(at::kDouble);
        made = {DTensor(at::ones({3, 2}, options)), DTensor(at::arange(3, options)),
                DTensor(at::randn({3, 2}, options))};
      }
      const std::vector<at::Tensor> expected{at::ones({3, 2}, at::kDouble), at::arange(3, at::kDouble), drawn};
      for (std::size_t i = 0; i < made.size(); ++i) {
        EXPECT_EQ(made[i].placements(), placements) << i;
        expect_close(made[i], expected[i], c10::str("factory ", i));
      }
    });
  }
}

TEST(MeshScope, RandomFactoriesDoNotDependOnTheLayout) {
  const auto draw = [](const Shape& shape, const Placements& placements) {
    at::Tensor result;
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      manual_seed(mesh, 7);
      const auto x = randn({6, 5}, mesh, placements, at::kDouble).full_tensor();
      const auto y = rand({6, 5}, mesh, placements, at::kDouble).full_tensor();
      if (mesh.world().rank() == 0) result = at::stack({x, y});
    });
    return result;
  };
  const auto reference = draw({1}, {Replicate()});
  EXPECT_TRUE(at::equal(draw({2}, {Shard(0)}), reference));
  EXPECT_TRUE(at::equal(draw({3}, {Shard(1)}), reference));
  EXPECT_TRUE(at::equal(draw({2, 2}, {Shard(1), Replicate()}), reference));
  EXPECT_GT(reference.std().item<double>(), 0.1);
}

TEST(MeshScope, ThirdPartyModuleIsCreatedShardedAndTrains) {
  const auto train = [](const Shape& shape, const Placements& placements) {
    std::vector<double> losses;
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      manual_seed(mesh, 3);
      std::vector<double> mine;
      torch::nn::Sequential model{nullptr};
      {
        const MeshScope scope(mesh, placements);
        model = torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
      }
      const at::Tensor x = randn({10, 6}, mesh), target = randn({10, 3}, mesh);
      for (int step = 0; step < 3; ++step) {
        auto loss = (model->forward(x) - target).square().mean();
        mine.push_back(loss.item<double>());
        loss.backward();
        at::NoGradGuard no_grad;
        for (auto& p : model->parameters()) {
          p.sub_(p.grad(), 0.1);
          p.mutable_grad() = at::Tensor();
        }
      }
      if (mesh.world().rank() == 0) losses = mine;
    });
    return losses;
  };
  const auto reference = train({1}, {Replicate()});
  EXPECT_GT(reference[0], reference[2]);
  for (const auto& [shape, placements] : std::vector<std::pair<Shape, Placements>>{
           {{2}, {Shard(0)}}, {{2}, {Replicate()}}, {{3}, {Shard(1)}}, {{2, 2}, {Shard(0), Shard(1)}}}) {
    const auto losses = train(shape, placements);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses[i], reference[i], 1e-6) << to_string(placements);
  }
}

TEST(MeshScope, OperatorsInsideKeepTemporariesRegular) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto a = at::ones({3, 3}), b = at::ones({3, 3});
    const MeshScope scope(mesh);
    const auto c =
        at::cat({a, b}).index_select(0, at::ones({1}, at::kLong).is_nonzero() ? a.nonzero().select(1, 0) : a);
    EXPECT_FALSE(is_dtensor(c));
    EXPECT_EQ(c.size(0), 9);
  });
}

// Memory has the requested order on each rank, so views of one device are views here as well.
TEST(MeshScope, EmptyTensorsHaveTheRequestedStrides) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
      const MeshScope scope(mesh, {placement});
      const auto columns = at::empty_strided({4, 6}, {1, 4}, at::kDouble).fill_(1);
      const auto image =
          at::empty({2, 4, 3, 5}, at::TensorOptions(at::kDouble), at::MemoryFormat::ChannelsLast).fill_(1);
      EXPECT_EQ(columns.t().view({-1}).sum().item<double>(), 24) << placement.str();
      EXPECT_EQ(image.permute({0, 2, 3, 1}).view({-1}).sum().item<double>(), 120) << placement.str();
    }
  });
}

TEST(MeshScope, LiteralTensorsAndTriangleIndices) {
  const auto make = [] {
    return std::vector<at::Tensor>{torch::tensor({1, 2, 3, 4, 5}),
                                   torch::tensor({{1.5, 2.0}, {3.0, 4.0}, {5.0, 6.0}}),
                                   torch::tensor(std::vector<double>{1, 2, 3}, torch::kHalf),
                                   torch::tensor({true, false, true}),
                                   torch::tensor(7),
                                   torch::tensor(std::vector<float>()),
                                   at::tensor({4.0, 5.0, 6.0}),
                                   at::tril_indices(3, 4),
                                   at::triu_indices(4, 3, 1)};
  };
  const auto expected = make();
  for (const Shape& shape : {Shape{2}, Shape{3}, Shape{2, 2}}) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      for (const auto& placement : {Replicate(), Shard(0), Shard(-1)}) {
        const MeshScope scope(mesh, Placements(shape.size(), placement));
        const auto actual = make();
        for (std::size_t i = 0; i < expected.size(); ++i) {
          ASSERT_TRUE(is_dtensor(actual[i])) << i;
          EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type()) << i;
          const NoMeshScopeGuard regular;
          expect_close(actual[i] * 2, expected[i] * 2, c10::str("tensor ", i, " ", placement.str()));
        }
      }
    });
  }
}

// Intermediate tensors of the library stay regular: values that ranks exchange, and copies in another memory order.
TEST(MeshScope, TensorsMayEnterAndLeaveTheMesh) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto regular = at::arange(12, at::kDouble).view({4, 3}), turned = regular.t().contiguous().t();
    const MeshScope scope(mesh);
    for (const auto& given : {regular, turned}) {
      const at::Tensor x = distribute_tensor(given, mesh, {Replicate()}).requires_grad_();
      EXPECT_TRUE(at::equal(DTensor(x).to_local().detach(), regular));
      (DTensor(x).to_local() * given).sum().backward();  // Compares the gradients of the ranks.
      EXPECT_TRUE(at::equal(DTensor(x.grad()).to_local(), regular));
      const auto joined = DTensor::from_local(given, mesh, {Shard(0)});
      EXPECT_EQ(joined.size(0), 8);
      EXPECT_TRUE(at::equal(joined.full_tensor().narrow(0, 4, 4), regular));
      const auto row_major = DTensor::from_local(given, mesh, {Shard(1)}, {4, 6}, {6, 1});
      EXPECT_TRUE(at::equal(row_major.to_local(), regular));
      EXPECT_TRUE(at::equal(distribute_tensor_from(given, mesh, {Shard(0)}, 1).full_tensor(), regular));
    }
  });
}

}  // namespace
}  // namespace dtensor::test
