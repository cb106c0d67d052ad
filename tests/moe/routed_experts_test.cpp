// A user-defined block with user-defined experts equals one device on every mesh, forward and backward, also in FSDP
// units of entire blocks.
#include "moe/small_layer.h"

#include "dtensor/optim.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

// Has a norm, biases and a parameter that is not a matrix, which the packed class lacks.
struct Expert final : nn::Module {
  Expert() : norm(8, 1e-5, true, at::kDouble), up(8, 6, true, at::kDouble), down(6, 8, true, at::kDouble) {
    scale = at::ones({8}, at::kDouble);
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
    register_parameter("scale", scale);
  }
  at::Tensor forward(const at::Tensor& rows) const {
    return down.forward(at::gelu(up.forward(norm.forward(rows)))) * scale + rows;
  }
  nn::LayerNorm norm;
  nn::Linear up, down;
  at::Tensor scale;
};

struct Block final : nn::Module {
  Block() : router(8, 4, true, at::kDouble) {
    for (int e = 0; e < 4; ++e) experts.add(std::make_unique<Expert>());
    register_module("router", router);
    register_module("experts", experts);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto [weights, ids] = at::softmax(router.forward(x), -1).topk(2, -1);
    return x + experts.forward(x, ids, weights);
  }
  nn::Linear router;
  RoutedExperts experts;
};

struct Tower final : nn::Module {
  explicit Tower(int layers) {
    for (int i = 0; i < layers; ++i) {
      blocks.push_back(std::make_unique<Block>());
      register_module("h" + std::to_string(i), *blocks.back());
    }
    fill(*this, 3);
  }
  at::Tensor forward(at::Tensor x) const {
    for (const auto& block : blocks) x = block->forward(x);
    return x;
  }
  std::vector<std::unique_ptr<Block>> blocks;
};

struct Result {
  at::Tensor y, dx;
  std::vector<std::pair<std::string, at::Tensor>> gradients;
};

at::Tensor tokens() { return Draw(9).normal({4, 3, 8}); }

Result one_device(int layers) {
  Tower tower(layers);
  const auto x = tokens().requires_grad_();
  const auto y = tower.forward(x);
  y.square().mean().backward();
  Result result{y.detach(), x.grad(), {}};
  for (const auto& [name, p] : tower.named_parameters()) result.gradients.emplace_back(name, p->grad());
  return result;
}

void expect_equal(Tower& tower, const at::Tensor& y, const at::Tensor& dx, const Result& wanted,
                  const std::string& what) {
  expect_close(y.detach(), wanted.y, what + " y");
  expect_close(dx, wanted.dx, what + " dx");
  std::size_t i = 0;
  for (const auto& [name, p] : tower.named_parameters()) {
    ASSERT_EQ(name, wanted.gradients[i].first);
    if (!is_dtensor(*p) || DTensor(*p).mesh().is_member()) {
      expect_close(p->grad(), wanted.gradients[i].second, what + " " + name);
    } else {
      EXPECT_FALSE(p->grad().defined()) << name;
    }
    ++i;
  }
}

enum class Units { none, blocks };

void check(const Shape& shape, Units kind, const Placements& placements, const Result& wanted) {
  run_local(count(shape), [&](Communicator world) {
    const auto dense = init_device_mesh(world, at::kCPU, shape, {"shard", "tp"});
    const auto sparse = dense.view(shape, {"edp", "ep"});
    Tower tower(2);
    EXPECT_EQ(apply_expert_parallel(tower, sparse), 2);
    if (kind == Units::none) {
      NamedTensors rest;
      for (const auto& item : tower.named_parameters()) {
        if (!is_dtensor(*item.second)) rest.push_back(item);
      }
      nn::distribute(rest, dense, [](const auto&, const auto&) { return Placements(2); });
    } else {
      for (const auto& block : tower.blocks) fully_shard(*block, dense);
      fully_shard(tower, dense);
    }
    const auto x = distribute_tensor(tokens(), dense, placements).requires_grad_();
    const auto y = tower.forward(x);
    y.square().mean().backward();
    expect_equal(tower, y, x.grad(), wanted, c10::str(dense.str(), " ", to_string(placements)));
  });
}

TEST(RoutedExperts, UserDefinedBlockEqualsOneDevice) {
  const auto wanted = one_device(2);
  for (const auto& shape : {Shape{1, 1}, Shape{1, 2}, Shape{2, 1}, Shape{2, 2}, Shape{1, 4}}) {
    for (const auto kind : {Units::none, Units::blocks}) {
      check(shape, kind, {Shard(0), Replicate()}, wanted);
      check(shape, kind, {Shard(0), Shard(1)}, wanted);
    }
  }
}

// Every token goes to experts 0 and 1: the others, some alone on their rank, run without rows and get zero gradients.
TEST(RoutedExperts, ExpertsWithoutTokensGetZeroGradients) {
  run_local(4, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"edp", "ep"});
    Block block;
    fill(block, 3);
    {
      const at::NoGradGuard no_grad;
      block.router.bias.copy_(at::tensor({50.0, 40.0, 0.0, 0.0}));
    }
    apply_expert_parallel(block, mesh);
    fully_shard(block, mesh, {.shard_axes = {"edp"}});
    const auto x = distribute_tensor(tokens(), mesh, {Shard(0), Shard(0)});
    block.forward(x).square().mean().backward();
    for (const auto& [name, p] : block.experts.named_parameters()) {
      if (!DTensor(*p).mesh().is_member()) continue;
      ASSERT_TRUE(p->grad().defined()) << name;
      const bool used = name[0] == '0' || name[0] == '1';
      EXPECT_EQ(DTensor(p->grad()).full_tensor().abs().sum().item<double>() > 0, used) << name;
    }
  });
}

// FSDP units of entire blocks on the dense mesh, whose experts are already distributed, packed or user-defined.
// `gathers` is the number per step. At most two blocks are gathered at a time.
template <class Model>
void expect_resharding(Model& model, const DeviceMesh& dense, int gathers, const std::function<at::Tensor()>& loss) {
  std::vector<FsdpUnit> units;
  for (const auto& block : model.blocks) units.push_back(fully_shard(*block, dense, {.shard_axes = {"shard"}}));
  fully_shard(model, dense, {.shard_axes = {"shard"}});
  loss().backward();  // records the order of units
  units[0].reset_peaks();
  const auto before = units[0].stats();
  loss().backward();
  const auto after = units[0].stats();
  EXPECT_EQ(after.all_gathers - before.all_gathers, gathers);
  EXPECT_EQ(after.reduce_scatters - before.reduce_scatters, 2 * static_cast<std::int64_t>(model.blocks.size()));
  EXPECT_EQ(after.gathered_bytes, 0);
  std::int64_t bytes = 0;  // gathered bytes of all parameters of a block on this rank
  for (const auto& [name, p] : model.blocks[0]->named_parameters()) {
    const DTensor t(*p);
    if (!t.mesh().is_member()) continue;
    const auto parts = t.mesh() == dense ? 1 : t.mesh().names().size() == 1 ? 1 : dense.size(1);  // split over ep
    bytes += (t.numel() / parts * 8 + 63) / 64 * 64;
  }
  EXPECT_LE(after.peak_gathered_bytes, 2 * bytes);
}

TEST(RoutedExperts, UnitsOfEntireBlocksReshardAfterExpertParallelism) {
  run_local(4, [](Communicator world) {
    const auto dense = init_device_mesh(world, at::kCPU, {2, 2}, {"shard", "tp"});
    const auto x = distribute_tensor(tokens(), dense, {Shard(0), Shard(0)});
    Tower own(5);
    apply_expert_parallel(own, dense.view({2, 2}, {"edp", "ep"}));
    // Router and experts of each block in forward and backward, except for the last block in backward.
    expect_resharding(own, dense, 5 * 4 - 2, [&] { return own.forward(x).square().mean(); });

    struct Packed final : nn::Module {
      Packed() {
        for (int i = 0; i < 5; ++i) {
          blocks.push_back(std::make_unique<MixtureOfExperts>(small_options()));
          register_module("h" + std::to_string(i), *blocks.back());
        }
        fill(*this, 3);
      }
      std::vector<std::unique_ptr<MixtureOfExperts>> blocks;
    } packed;
    apply_expert_parallel(packed, dense.view({2, 2, 1}, {"edp", "ep", "etp"}));
    // A packed layer keeps a copy of its gate.
    expect_resharding(packed, dense, 5 * 3 - 1, [&] {
      at::Tensor y = x;
      for (const auto& block : packed.blocks) y = block->forward(y);
      return y.square().mean();
    });
  });
}

TEST(RoutedExperts, OptimizerStepsAndClippingEqualOneDevice) {
  Tower regular(1);
  AdamW reference(regular.parameters());
  std::vector<double> norms;
  for (int step = 0; step < 3; ++step) {
    regular.forward(tokens()).square().sum().backward();
    norms.push_back(clip_grad_norm_(regular.parameters(), 0.5).item<double>());
    reference.step();
    reference.zero_grad();
  }
  run_local(4, [&](Communicator world) {
    const auto dense = init_device_mesh(world, at::kCPU, {2, 2}, {"shard", "tp"});
    Tower tower(1);
    apply_expert_parallel(tower, dense.view({2, 2}, {"edp", "ep"}));
    fully_shard(tower, dense);
    AdamW optimizer(tower.parameters());
    for (int step = 0; step < 3; ++step) {
      tower.forward(distribute_tensor(tokens(), dense, {Shard(0), Replicate()})).square().sum().backward();
      EXPECT_NEAR(clip_grad_norm_(tower.parameters(), 0.5).item<double>(), norms[step], 1e-9 * norms[step]);
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

// The id size() means no expert; any other id out of range must raise.
TEST(RoutedExperts, IdsOutOfRangeAreAnError) {
  const auto rows = tokens().view({12, 8});
  const auto weights = at::ones({12, 2}, at::kDouble);
  const auto ids_with = [](std::int64_t id) {
    auto ids = at::arange(24).remainder(4).view({12, 2});
    ids[11][1] = id;
    return ids;
  };
  Block regular;
  EXPECT_EQ(error_of([&] { regular.experts.forward(rows, ids_with(4), weights); }), "no error");
  for (const std::int64_t id : {-1, 5, 9}) {
    const auto text =
        c10::str("ids from ", std::min<std::int64_t>(id, 0), " to ", std::max<std::int64_t>(id, 3), " for 4 experts");
    const auto error = error_of([&] { regular.experts.forward(rows, ids_with(id), weights); });
    EXPECT_NE(error.find(text), std::string::npos) << error;
    run_local(2, [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
      Block block;
      apply_expert_parallel(block, mesh);
      const auto on_all = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Replicate()}); };
      // Ranks split the replicated tokens, but each has checked the id.
      const auto reported =
          error_of([&] { block.experts.forward(on_all(rows), on_all(ids_with(id)), on_all(weights)); });
      EXPECT_NE(reported.find(text), std::string::npos) << "rank " << world.rank() << ": " << reported;
      EXPECT_EQ(error_of([&] { block.experts.forward(on_all(rows), on_all(ids_with(4)), on_all(weights)); }),
                "no error");
    });
    EXPECT_ANY_THROW(run_local(2, [&](Communicator world) {  // an invalid id on one rank only
      const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
      Block block;
      apply_expert_parallel(block, mesh);
      const auto split = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Shard(0)}); };
      block.experts.forward(split(rows), split(ids_with(id)), split(weights));
    }));
  }
}

TEST(RoutedExperts, InvalidCallsAreErrors) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
    RoutedExperts three;
    for (int e = 0; e < 3; ++e) three.add(std::make_unique<Expert>());
    EXPECT_NE(error_of([&] { apply_expert_parallel(three, mesh); }).find("3 experts are not divisible by 2 ranks"),
              std::string::npos);
    const auto x = distribute_tensor(tokens().view({12, 8}), mesh, {Shard(0)});
    const auto ids = distribute_tensor(at::zeros({12, 2}, at::kLong), mesh, {Shard(0)});
    EXPECT_NE(error_of([&] { three.forward(x, ids, ids.to(at::kDouble)); }).find("call apply_expert_parallel first"),
              std::string::npos);
    EXPECT_NE(error_of([&] { three.forward(x, ids.to_local(), ids); }).find("do not match"), std::string::npos);
    Block block;
    const auto split = init_device_mesh(world, at::kCPU, {1, 2}, {"ep", "etp"});
    EXPECT_NE(error_of([&] { apply_expert_parallel(block, split); }).find("cannot be split over 'etp'"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace dtensor::test
