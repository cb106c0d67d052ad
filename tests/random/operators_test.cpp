// Random operators of ATen on DTensors: the same global tensor on every mesh and placement, and one counter for each
// world.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

#include "support/ranks.h"

namespace dtensor::test {
namespace {

struct Case {
  const char* name;
  // Draws from or into a DTensor of zeros.
  std::function<at::Tensor(at::Tensor)> run;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"normal_", [](at::Tensor x) { return x.normal_(1, 2); }},
      {"uniform_", [](at::Tensor x) { return x.uniform_(-1, 1); }},
      {"bernoulli_", [](at::Tensor x) { return x.bernoulli_(0.3); }},
      {"bernoulli_.Tensor", [](at::Tensor x) { return x.bernoulli_(at::full_like(x, 0.3)); }},
      {"bernoulli", [](at::Tensor x) { return at::bernoulli(x.add_(0.25)); }},
      {"bernoulli.p", [](at::Tensor x) { return at::bernoulli(x, 0.6); }},
      {"random_", [](at::Tensor x) { return x.random_(); }},
      {"random_.to", [](at::Tensor x) { return x.random_(10); }},
      {"random_.from", [](at::Tensor x) { return x.random_(-5, 10); }},
      {"exponential_", [](at::Tensor x) { return x.exponential_(2); }},
      {"geometric_", [](at::Tensor x) { return x.geometric_(0.3); }},
      {"cauchy_", [](at::Tensor x) { return x.cauchy_(); }},
      {"log_normal_", [](at::Tensor x) { return x.log_normal_(); }},
      {"rand_like", [](at::Tensor x) { return at::rand_like(x); }},
      {"randn_like", [](at::Tensor x) { return at::randn_like(x); }},
      {"randn_like bf16", [](at::Tensor x) { return at::randn_like(x, at::kBFloat16); }},
      {"randint_like", [](at::Tensor x) { return at::randint_like(x, 7); }},
      {"randint_like.low", [](at::Tensor x) { return at::randint_like(x, 3, 7); }},
      {"normal.Tensor_float", [](at::Tensor x) { return at::normal(x.add_(3), 0.5); }},
      {"normal.float_Tensor", [](at::Tensor x) { return at::normal(1.0, x.add_(2)); }},
      {"normal.Tensor_Tensor", [](at::Tensor x) { return at::normal(at::full_like(x, 3), x.add_(2)); }},
      {"native_dropout", [](at::Tensor x) { return std::get<0>(at::native_dropout(x + 1, 0.4, true)); }},
      {"dropout", [](at::Tensor x) { return at::dropout(x + 1, 0.4, true); }},
      {"dropout_", [](at::Tensor x) { return at::dropout_(x.add_(1), 0.4, true); }},
      {"feature_dropout", [](at::Tensor x) { return at::feature_dropout(x + 1, 0.4, true); }},
      {"transposed", [](at::Tensor x) { return x.t().contiguous().t().normal_(); }},
      {"view", [](at::Tensor x) { return x.t().uniform_(); }},
  };
  return all;
}

// The result on one rank of a separate world.
at::Tensor on_one_rank(const Case& c, const Shape& sizes) {
  at::Tensor result;
  on_mesh({1}, [&](const DeviceMesh& mesh) {
    manual_seed(mesh, 11);
    result = DTensor(c.run(zeros(sizes, mesh))).full_tensor();
  });
  return result;
}

class RandomOperators : public ::testing::TestWithParam<Case> {};

TEST_P(RandomOperators, SameOnEveryMeshAndPlacement) {
  Draw draw(3);
  for (const auto& shape : mesh_shapes()) {
    for (int trial = 0; trial < 4; ++trial) {
      const auto sizes = draw.sizes(2, 1, 9);
      const auto expected = on_one_rank(GetParam(), sizes);
      const auto seed = static_cast<std::uint64_t>(draw.integer(0, 1 << 30));
      on_mesh(shape, [&](const DeviceMesh& mesh) {
        const auto placements = Draw(seed).placements(mesh, 2, /*partial=*/false);
        manual_seed(mesh, 11);
        const DTensor actual(GetParam().run(zeros(sizes, mesh, placements)));
        EXPECT_TRUE(actual.full_tensor().equal(expected)) << actual.spec_str() << "\n"
                                                          << actual.full_tensor() << expected;
        EXPECT_GE(get_rng_state(mesh).counter, 1U);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RandomOperators, ::testing::ValuesIn(cases()), [](const auto& info) {
  std::string name;
  for (const char* c = info.param.name; *c; ++c) name += std::isalnum(static_cast<unsigned char>(*c)) ? *c : '_';
  return name + "_" + std::to_string(info.index);
});

TEST(Random, DropoutScalesAndItsGradientUsesTheSameMask) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    manual_seed(mesh, 1);
    auto x = at::Tensor(ones({40, 30}, mesh, {Shard(0), Shard(1)})).requires_grad_();
    const auto y = at::dropout(x, 0.25, true);
    y.sum().backward();
    const auto values = DTensor(y).full_tensor();
    EXPECT_TRUE((values.eq(0) | values.sub(1 / 0.75).abs().lt(1e-6)).all().item<bool>());
    EXPECT_NEAR(values.mean().item<double>(), 1, 0.1);
    EXPECT_TRUE(DTensor(x.grad()).full_tensor().equal(values));
    EXPECT_TRUE(DTensor(at::dropout(x, 0.25, false)).full_tensor().eq(1).all().item<bool>());
  });
}

// A cached call checks its values as well.
TEST(Random, UniformRangesAreCheckedAtEachCall) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    auto x = at::Tensor(zeros({4}, mesh, {Shard(0)}));
    for (int i = 0; i < 2; ++i) {
      x.uniform_(-1, 1);
      EXPECT_THROW(x.uniform_(-3e38, 3e38), c10::Error);
      EXPECT_THROW(x.uniform_(0, INFINITY), c10::Error);
      EXPECT_THROW(x.uniform_(2, 1), c10::Error);
    }
  });
}

TEST(Random, RestoredStateRepeatsTheDraws) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    manual_seed(mesh, 4);
    const auto draw = [&] { return randn({5, 3}, mesh, {Shard(0)}).full_tensor(); };
    const auto first = draw();
    const auto state = get_rng_state(mesh);
    const auto second = draw();
    EXPECT_FALSE(first.equal(second));
    set_rng_state(mesh, state);
    EXPECT_TRUE(draw().equal(second));
    manual_seed(mesh, 4);
    EXPECT_TRUE(draw().equal(first));
    manual_seed(mesh, 5);
    EXPECT_FALSE(draw().equal(first));
  });
}

// Ranks outside a mesh count its random operators too, so that the next tensor on the world's mesh is the same
// everywhere.
TEST(Random, RanksOutsideTheMeshKeepTheCount) {
  run_local(3, [](Communicator world) {
    const auto all = init_device_mesh(world, at::kCPU, {3}, {"all"});
    const auto two = init_device_mesh(world, at::kCPU, {2}, {"two"});
    manual_seed(all, 8);
    auto x = at::Tensor(zeros({4, 4}, two, {Shard(0)}));
    x.normal_();
    (void)at::native_dropout(x, 0.5, true);
    EXPECT_EQ(get_rng_state(all), (RngState{8, 2}));
    const auto after = randn({7}, all, {Shard(0)}).full_tensor();
    std::vector<at::Tensor> seen(3);
    for (auto& t : seen) t = at::empty_like(after);
    world.all_gather(seen, after).wait();
    EXPECT_TRUE(seen[0].equal(seen[1]) && seen[0].equal(seen[2]));
  });
}

TEST(Random, PermutationInAMeshScope) {
  at::Tensor expected;
  for (const auto& shape : std::vector<Shape>{{1}, {2}, {2, 2}}) {
    std::mutex mutex;
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      manual_seed(mesh, 6);
      const MeshScope scope(mesh, Placements(static_cast<std::size_t>(mesh.ndim()), Shard(0)));
      const auto drawn = DTensor(at::randperm(11)).full_tensor();
      const auto after = DTensor(at::rand({3})).full_tensor();
      const std::lock_guard lock(mutex);
      if (!expected.defined()) expected = at::cat({drawn.to(at::kFloat), after});
      EXPECT_TRUE(at::cat({drawn.to(at::kFloat), after}).equal(expected));
      EXPECT_TRUE(std::get<0>(drawn.sort()).equal(std::get<0>(expected.slice(0, 0, 11).to(at::kLong).sort())));
      EXPECT_THROW(at::rand({3}, at::detail::createCPUGenerator(1)), c10::Error);
    });
  }
}

TEST(Random, OperatorsWithoutIndexedFormDrawTheSameOnEveryRank) {
  at::Tensor expected;
  for (const auto& shape : std::vector<Shape>{{1}, {2}, {2, 2}}) {
    std::mutex mutex;
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      manual_seed(mesh, 2);
      Placements placements(static_cast<std::size_t>(mesh.ndim()));
      placements[0] = Shard(0);
      const at::Tensor weights = rand({6, 20}, mesh, placements);
      const auto drawn = DTensor(at::multinomial(weights, 5)).full_tensor();
      const std::lock_guard lock(mutex);
      if (!expected.defined()) expected = drawn;
      EXPECT_TRUE(drawn.equal(expected));
    });
  }
}

TEST(Random, GeneratorsAreRefusedAndPartialsReducedFirst) {
  const auto expected = on_one_rank({"", [](at::Tensor x) { return x.normal_(); }}, {4});
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    auto x = at::Tensor(zeros({4}, mesh, {Shard(0)}));
    EXPECT_THROW(x.normal_(0, 1, at::detail::createCPUGenerator(1)), c10::Error);
    manual_seed(mesh, 11);
    auto p = DTensor::from_local(at::ones({4}), mesh, {Partial()});
    p.normal_();  // Draws the full values, then stores summands.
    EXPECT_TRUE(p.placements()[0].is_partial());
    EXPECT_TRUE(p.full_tensor().equal(expected));
    p = DTensor::from_local(at::ones({4}), mesh, {Partial()});
    // The Partial is reduced first: each element is 0 or 2 (sum of the ranks) * 2 (scale).
    const auto dropped = DTensor(at::dropout(p, 0.5, true)).full_tensor();
    EXPECT_TRUE((dropped.eq(0) | dropped.eq(4)).all().item<bool>()) << dropped;
  });
}

}  // namespace
}  // namespace dtensor::test
