// Shampoo and Muon: the work of each rank and its communication; blocks that follow the global tensor; half precision;
// state that moves between layouts; parameters on several meshes, with ranks outside.
#include "dtensor/fully_shard.h"
#include "optim/blocks/parameter_blocks.h"
#include "optim/mixture.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

Shape shape_of(const optim::Block& b) { return {b.shape.begin(), b.shape.end()}; }

TEST(Blocks, MergeAndCut) {
  EXPECT_EQ(shape_of(optim::split_into_blocks({8, 6}, 1024, 2).at(0)), (Shape{8, 6}));
  EXPECT_EQ(shape_of(optim::split_into_blocks({8, 6}, 1024, 1).at(0)), (Shape{48}));
  EXPECT_EQ(shape_of(optim::split_into_blocks({64, 64, 3, 3}, 1024, 2).at(0)), (Shape{64, 576}));
  EXPECT_EQ(shape_of(optim::split_into_blocks({64, 64, 3, 3}, 100, 2).at(0)), (Shape{64, 64, 9}));
  EXPECT_EQ(shape_of(optim::split_into_blocks({64, 64, 3, 3}, 1024, 0).at(0)), (Shape{64, 64, 3, 3}));
  EXPECT_EQ(shape_of(optim::split_into_blocks({1, 5, 1}, 1024, 2).at(0)), (Shape{5}));
  EXPECT_EQ(shape_of(optim::split_into_blocks({}, 1024, 2).at(0)), (Shape{1}));
  EXPECT_TRUE(optim::split_into_blocks({0, 3}, 1024, 2).empty());
  const auto blocks = optim::split_into_blocks({5, 7}, 3, 2);
  ASSERT_EQ(blocks.size(), 6u);
  EXPECT_EQ(shape_of(blocks.back()), (Shape{2, 1}));
}

TEST(Blocks, CoverEachElementOnce) {
  EXPECT_TRUE(rc::check("blocks cover each element once", [] {
    Draw draw(*rc::gen::arbitrary<std::uint64_t>());
    const Shape sizes = draw.sizes(draw.integer(0, 4), 0, 6);
    const at::Tensor count = at::zeros(sizes, at::kLong);
    for (const auto& block : optim::split_into_blocks(sizes, draw.integer(1, 8), draw.integer(0, 3))) {
      at::Tensor part = count;
      std::int64_t numel = 1;
      for (std::size_t d = 0; d < sizes.size(); ++d) {
        const Segment& range = block.region.dims[d].front();
        part = part.narrow(static_cast<std::int64_t>(d), range.offset, range.length);
      }
      for (const auto d : block.shape) numel *= d;
      RC_ASSERT(numel == part.numel());
      part += 1;
    }
    RC_ASSERT(count.eq(1).all().item<bool>());
  }));
}

using Make = std::function<std::unique_ptr<Optimizer>(const std::vector<at::Tensor>&)>;

Make shampoo(std::int64_t block_size, std::int64_t start = 1) {
  return [=](const auto& p) {
    return std::make_unique<Shampoo>(
        p, ShampooOptions{
               .lr = 0.1, .eps = 1e-4, .weight_decay = 0.01, .frequency = 2, .start = start, .block_size = block_size});
  };
}

Make muon() {
  return [](const auto& p) { return std::make_unique<Muon>(p, MuonOptions{.bfloat16 = false}); };
}

// A gradient that depends on the step and the parameter's index only.
at::Tensor gradient_at(const at::Tensor& full, std::size_t step, std::size_t i) {
  return Draw(step * 1000 + i + 1).normal(full.sizes().vec(), full.scalar_type());
}

struct Training {
  std::vector<at::Tensor> parameters;
  std::unique_ptr<Optimizer> optimizer;
};

std::vector<at::Tensor> expected_after(const std::vector<Item>& items, const Make& make, std::size_t steps) {
  std::vector<at::Tensor> parameters;
  for (const Item& item : items) parameters.push_back(item.full.clone().requires_grad_());
  const auto optimizer = make(parameters);
  for (std::size_t step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < items.size(); ++i) parameters[i].mutable_grad() = gradient_at(items[i].full, step, i);
    optimizer->step();
  }
  return parameters;
}

void step_placed(const std::vector<Item>& items, const std::vector<DeviceMesh>& meshes, Training& run,
                 std::size_t step) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    run.parameters[i].mutable_grad() = place(items[i], gradient_at(items[i].full, step, i), meshes, false);
  }
  run.optimizer->step();
}

void check_mixture(const std::vector<Item>& items, const Make& make, double tolerance) {
  const auto expected = expected_after(items, make, 4);
  run_local(4, [&](Communicator world) {
    const auto meshes = meshes_of(world);
    Training run;
    for (const Item& item : items) run.parameters.push_back(place(item, item.full, meshes).requires_grad_());
    run.optimizer = make(run.parameters);
    for (std::size_t step = 0; step < 4; ++step) {
      step_placed(items, meshes, run, step);
      if (step != 1) continue;  // A new optimizer continues with the state.
      const OptimizerState state = run.optimizer->state_dict();
      run.optimizer = make(run.parameters);
      run.optimizer->load_state_dict(state);
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (is_local_member(run.parameters[i])) {
        expect_close(full_of(run.parameters[i]), expected[i].detach(), "item " + std::to_string(i), tolerance);
      }
    }
  });
}

TEST(Spread, ShampooOnThreeMeshesAndRegular) {
  EXPECT_TRUE(rc::check("blocks follow the global tensor", [] {
    Draw draw(*rc::gen::arbitrary<std::uint64_t>());
    const auto items = any_items(draw, at::kDouble, 5);
    check_mixture(items, shampoo(draw.integer(2, 5), draw.integer(1, 3)), 1e-9);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

TEST(Spread, MuonOnThreeMeshesAndRegular) {
  EXPECT_TRUE(rc::check("full matrices are orthogonalized", [] {
    Draw draw(*rc::gen::arbitrary<std::uint64_t>());
    auto items = any_items(draw, at::kDouble, 5);
    std::erase_if(items, [](const Item& i) { return i.full.dim() != 2 && i.full.dim() != 3; });
    check_mixture(items, muon(), 1e-9);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

TEST(Blocks, MatricesOfAStack) {
  EXPECT_EQ(optim::matrices({4, 6}).size(), 1u);
  const auto blocks = optim::matrices({3, 4, 6});
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(shape_of(blocks[2]), (Shape{4, 6}));
  EXPECT_EQ(blocks[2].region.dims, (decltype(Region::dims){{{2, 1}}, {{0, 4}}, {{0, 6}}}));
  EXPECT_TRUE(optim::matrices({0, 4, 6}).empty());
}

// On every split, also along the stack.
TEST(Spread, MuonOrthogonalizesEachMatrixOfAStack) {
  const at::Tensor stack = Draw(1).normal({5, 4, 6});
  std::vector<at::Tensor> expected;
  for (const at::Tensor& matrix : stack.unbind()) expected.push_back(matrix.clone().requires_grad_());
  const auto one_by_one = muon()(expected);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i].mutable_grad() = expected[i].detach().square();
  one_by_one->step();
  for (const Placement& placement :
       {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1)), Placement(Shard(2))}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const at::Tensor p = distribute_tensor(stack, mesh, {placement}).requires_grad_();
      const auto optimizer = muon()({p});
      p.mutable_grad() = p.detach().square();
      optimizer->step();
      expect_close(full_of(p), at::stack(expected).detach(), placement.str(), 1e-9);
    });
  }
}

TEST(Spread, MuonRefusesTensorsThatAreNoMatricesOrStacks) {
  for (const Shape& sizes : {Shape{}, Shape{5}, Shape{2, 3, 3, 3}}) {
    const std::string error = error_of([&] { Muon({at::ones(sizes).requires_grad_()}); });
    EXPECT_NE(error.find("expected matrices [m, n] or stacks of matrices [k, m, n]"), std::string::npos) << error;
  }
}

int collectives_of_second_step(const DeviceMesh& mesh, const Placements& placements, const Make& make) {
  std::vector<Item> items;
  for (int i = 0; i < 6; ++i) items.push_back({Draw(7).normal({6, 5}), 0, placements});
  Training run;
  for (const Item& item : items) run.parameters.push_back(place(item, item.full, {mesh}).requires_grad_());
  run.optimizer = make(run.parameters);
  step_placed(items, {mesh}, run, 0);
  for (std::size_t i = 0; i < items.size(); ++i) {
    run.parameters[i].mutable_grad() = place(items[i], gradient_at(items[i].full, 1, i), {mesh}, false);
  }
  int count = 0;
  const EventListener listener([&](const Event& e) { count += e.kind == Event::Kind::collective ? 1 : 0; });
  run.optimizer->step();
  return count;
}

TEST(Spread, TwoCollectivesPerStep) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    for (const Make& make : {shampoo(4), muon()}) {
      EXPECT_EQ(collectives_of_second_step(mesh, {Shard(0), Shard(1)}, make), 2);
      EXPECT_EQ(collectives_of_second_step(mesh, {Replicate(), Shard(1)}, make), 2);
      EXPECT_EQ(collectives_of_second_step(mesh, {Replicate(), Replicate()}, make),
                1);  // Gradients are replicated already.
    }
    EXPECT_EQ(collectives_of_second_step(mesh, {Shard(0), Shard(1)}, shampoo(4, 100)),
              1);  // AdamW before the first roots.
  });
}

// Equal blocks: every rank owns the same number, whatever the placements.
TEST(Spread, WorkIsBalanced) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    for (const Placements& placements : {Placements{Replicate(), Replicate()}, Placements{Replicate(), Shard(0)}}) {
      const at::Tensor p = distribute_tensor(Draw(1).normal({16, 8}), mesh, placements).requires_grad_();
      Shampoo optimizer({p}, {.frequency = 1, .start = 1, .block_size = 4});
      EXPECT_EQ(optimizer.owned_bytes(), 0);
      EXPECT_EQ(optimizer.predicted_bytes(), 2 * 2 * 2 * 16 * 8);
      p.mutable_grad() = distribute_tensor(Draw(2).normal({16, 8}), mesh, placements);
      optimizer.step();
      EXPECT_EQ(optimizer.owned_bytes(), 2 * 2 * 2 * 16 * 8);  // 2 of 8 blocks, factors and roots, left and right.
    }
  });
}

// Negative control: blocks of shards give different steps, so these tests can fail.
TEST(Spread, ShardLocalBlocksDiffer) {
  const at::Tensor start = Draw(1).normal({6, 5});
  // Detached: otherwise several ranks would create the autograd node of a shared leaf concurrently.
  const auto expected = expected_after({{start, kRegular, {}}}, shampoo(1024), 3)[0].detach();
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto part = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Shard(0)}).to_local().clone(); };
    const at::Tensor local = part(start).requires_grad_();
    const auto optimizer = shampoo(1024)({local});
    for (std::size_t step = 0; step < 3; ++step) {
      local.mutable_grad() = part(gradient_at(start, step, 0));
      optimizer->step();
    }
    EXPECT_GT((local - part(expected)).abs().max().item<double>(), 1e-3);
  });
}

TEST(Spread, HalfPrecisionKeepsWideState) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor p = distribute_tensor(Draw(1).normal({4, 4}, at::kBFloat16), mesh, {Shard(0)}).requires_grad_();
    p.mutable_grad() = at::ones_like(p);
    Shampoo optimizer({p}, {.start = 1});
    optimizer.step();
    for (const auto& [name, tensor] : optimizer.state(p)) EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
    EXPECT_EQ(p.scalar_type(), at::kBFloat16);
    EXPECT_EQ(optimizer.state(p).size(), 6u);
  });
}

// The state is saved as full tensors on one mesh and restored on another.
TEST(Spread, ShampooStateMovesBetweenLayouts) {
  const std::vector<Item> square{{Draw(1).normal({6, 5}), 0, {Shard(0), Shard(1)}}};
  const auto expected = expected_after(square, shampoo(3, 2), 6)[0];  // Step 5 uses the roots of step 4.
  OptimizerState saved;
  at::Tensor middle;
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    Training run{{place(square[0], square[0].full, {mesh}).requires_grad_()}, nullptr};
    run.optimizer = shampoo(3, 2)(run.parameters);
    for (std::size_t step = 0; step < 4; ++step) step_placed(square, {mesh}, run, step);
    OptimizerState state = run.optimizer->state_dict();
    for (auto& [name, tensor] : state.tensors) tensor = full_of(tensor);
    const at::Tensor full = full_of(run.parameters[0]);
    if (mesh.world().rank() == 0) saved = state, middle = full;
  });
  const std::vector<Item> line{{middle, 0, {Shard(1)}}};
  on_mesh({3}, [&](const DeviceMesh& mesh) {
    Training run{{place(line[0], middle, {mesh}).requires_grad_()}, nullptr};
    run.optimizer = shampoo(3, 2)(run.parameters);
    run.optimizer->load_state_dict(saved);
    for (std::size_t step = 4; step < 6; ++step) step_placed(line, {mesh}, run, step);
    expect_close(full_of(run.parameters[0]), expected.detach(), "resumed", 1e-9);
    EXPECT_THROW(shampoo(4, 2)(run.parameters)->load_state_dict(saved), c10::Error);  // Different block size.
  });
}

// The parameter is redistributed between two steps.
TEST(Spread, ParametersMayBeRedistributed) {
  const std::vector<Item> items{{Draw(1).normal({6, 5}), 0, {Shard(0)}}};
  const auto expected = expected_after(items, shampoo(3), 4)[0];
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Training run{{place(items[0], items[0].full, {mesh}).requires_grad_()}, nullptr};
    run.optimizer = shampoo(3)(run.parameters);
    for (std::size_t step = 0; step < 2; ++step) step_placed(items, {mesh}, run, step);
    DTensor(run.parameters[0]).redistribute_({Shard(1)});
    for (std::size_t step = 2; step < 4; ++step) step_placed(items, {mesh}, run, step);
    expect_close(full_of(run.parameters[0]), expected.detach(), "moved", 1e-9);
  });
}

// Updates arrive in the memory order of the parameter.
TEST(Spread, ParametersMayHaveAnyMemoryOrder) {
  const std::vector<Item> items{{Draw(1).normal({5, 3}).t(), 0, {Shard(0)}},
                                {Draw(2).normal({2, 3, 4}).transpose(0, 2), 0, {Shard(1)}}};
  for (const Make& make : {shampoo(1024), muon()}) {
    const auto expected = expected_after(items, make, 2);
    for (const Shape& shape : {Shape{1}, Shape{2}}) {
      on_mesh(shape, [&](const DeviceMesh& mesh) {
        Training run;
        for (const Item& item : items) run.parameters.push_back(place(item, item.full, {mesh}).requires_grad_());
        run.optimizer = make(run.parameters);
        for (std::size_t step = 0; step < 2; ++step) step_placed(items, {mesh}, run, step);
        for (std::size_t i = 0; i < items.size(); ++i) {
          EXPECT_EQ(run.parameters[i].strides(), items[i].full.strides());
          expect_close(full_of(run.parameters[i]), expected[i].detach(), "item " + std::to_string(i), 1e-9);
        }
      });
    }
  }
}

// The optimizer is created with a parameter on a slice of the mesh. The parameter is then split over the other axis as
// well, where each slice has chosen another owner.
TEST(Spread, ParameterOnMoreRanksThanAtConstructionIsAnError) {
  run_local(4, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"shard", "tp"});
    for (const Make& make : {shampoo(4), muon()}) {
      at::Tensor p = distribute_tensor(Draw(1).normal({6, 5}), mesh["tp"], {Shard(0)}).requires_grad_();
      const auto optimizer = make({p});
      const auto step = [&] {
        p.mutable_grad() = at::ones_like(p);
        optimizer->step();
      };
      step();
      p.mutable_grad().reset();
      fully_shard({{"p", &p}}, mesh);
      const std::string error = error_of(step);
      EXPECT_NE(error.find("has moved from DeviceMesh(cpu, tp=2"), std::string::npos) << error;
    }
  });
}

TEST(Combined, MuonForMatricesAdamWForTheRest) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor w = distribute_tensor(Draw(1).normal({4, 6}), mesh, {Shard(0)}).requires_grad_();
    const at::Tensor b = distribute_tensor(Draw(2).normal({4}), mesh, {Shard(0)}).requires_grad_();
    EXPECT_THROW(Muon({b}), c10::Error);
    const auto optimizer = muon_with_adamw({w}, {}, {b}, {.lr = 0.5});
    EXPECT_EQ(optimizer->group_count(), 2u);
    EXPECT_EQ(optimizer->lr(1), 0.5);
    for (const at::Tensor& p : optimizer->parameters()) p.mutable_grad() = at::ones_like(p);
    optimizer->step();
    EXPECT_EQ(optimizer->state(w).at(0).first, "momentum_buffer");
    EXPECT_EQ(optimizer->state(b).size(), 2u);
    const auto again = muon_with_adamw({w}, {}, {b}, {});
    again->load_state_dict(optimizer->state_dict());
    EXPECT_EQ(again->lr(1), 0.5);
    expect_close(again->state(w).at(0).second, full_of(optimizer->state(w).at(0).second), "momentum");
  });
}

}  // namespace
}  // namespace dtensor::test
