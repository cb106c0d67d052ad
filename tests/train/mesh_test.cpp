// The loss curve does not depend on the mesh: losses and gradient norms of the reference run on thread ranks.
#include <gtest/gtest.h>

#include "mesh_run.h"

namespace {

using oracle::Curves;
using oracle::Variant;

Curves run(const Variant& variant) {
  Curves curves;
  dtensor::run_local(static_cast<int>(variant.shape.size()), [&](dtensor::Communicator world) {
    const Curves mine = oracle::run_on_mesh(world, variant);
    if (world.rank() == 0) curves = mine;
  });
  return curves;
}

void expect_close(const std::vector<double>& got, const std::vector<double>& expected, double relative,
                  const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t step = 0; step < got.size(); ++step) {
    EXPECT_NEAR(got[step], expected[step], relative * std::abs(expected[step])) << what << " of step " << step;
  }
}

const std::vector<train::MeshShape> kShapes = {{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {1, 2, 2}, {2, 2, 2}};

class OnMesh : public testing::TestWithParam<std::tuple<train::MeshShape, bool>> {};

TEST_P(OnMesh, MatchesTheReference) {
  const auto& [shape, loss_parallel] = GetParam();
  const Curves curves = run({.shape = shape, .loss_parallel = loss_parallel});
  expect_close(curves.loss, oracle::curve("loss"), 1e-5, "loss");
  expect_close(curves.grad_norm, oracle::curve("grad_norm"), 1e-5, "gradient norm");
}

std::string name_of(const testing::TestParamInfo<OnMesh::ParamType>& info) {
  const auto& [shape, loss_parallel] = info.param;
  return std::to_string(shape.replicate) + "x" + std::to_string(shape.shard) + "x" + std::to_string(shape.tp) +
         (loss_parallel ? "_loss_parallel" : "");
}

INSTANTIATE_TEST_SUITE_P(Meshes, OnMesh, testing::Combine(testing::ValuesIn(kShapes), testing::Bool()), name_of);

// Uneven everywhere: 8 sequences over 3, 4 heads over 3, 257 words over 3.
INSTANTIATE_TEST_SUITE_P(UnevenMeshes, OnMesh,
                         testing::Combine(testing::Values(train::MeshShape{3, 1, 1}, train::MeshShape{1, 3, 1},
                                                          train::MeshShape{1, 1, 3}, train::MeshShape{1, 2, 3}),
                                          testing::Bool()),
                         name_of);

TEST(Dropout, CurvesOfAllMeshesAgree) {
  const Curves one = run({.dropout = 0.1});
  EXPECT_GT(std::abs(one.loss[0] - oracle::curve("loss")[0]), 1e-3);  // Dropout has an effect.
  for (const train::MeshShape& shape : kShapes) {
    for (const bool loss_parallel : {false, true}) {
      SCOPED_TRACE(shape.str());
      const Curves curves = run({.shape = shape, .loss_parallel = loss_parallel, .dropout = 0.1});
      expect_close(curves.loss, one.loss, 1e-5, "loss");
      expect_close(curves.grad_norm, one.grad_norm, 1e-5, "gradient norm");
    }
  }
}

// Sequence parallel, recomputed, and both, with dropout, whose random numbers must not change.
TEST(SequenceParallel, WithRecomputationGivesTheSameCurve) {
  const Curves one = run({.dropout = 0.1, .dtype = at::kDouble});
  for (const train::MeshShape& shape :
       {train::MeshShape{1, 1, 2}, train::MeshShape{1, 2, 2}, train::MeshShape{1, 1, 3}}) {
    for (const bool sequence : {false, true}) {
      for (const bool again : {false, true}) {
        const Curves curves = run({.shape = shape,
                                   .loss_parallel = again,
                                   .dropout = 0.1,
                                   .dtype = at::kDouble,
                                   .sequence_parallel = sequence,
                                   .checkpoint_activations = again});
        expect_close(curves.loss, one.loss, 1e-9, "loss");
        expect_close(curves.grad_norm, one.grad_norm, 1e-9, "gradient norm");
      }
    }
  }
}

TEST(Double, MeshesAgreeToRounding) {
  const Curves one = run({.dtype = at::kDouble});
  const Curves many = run({.shape = {1, 2, 2}, .loss_parallel = true, .dtype = at::kDouble});
  expect_close(many.loss, one.loss, 1e-9, "loss");
  expect_close(many.grad_norm, one.grad_norm, 1e-9, "gradient norm");
}

}  // namespace
