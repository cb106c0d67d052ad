// Resumed training: optimizer states on any layout, random numbers, values, background saves, and a state that only
// one rank has.
#include <gtest/gtest.h>

#include "checkpoint/folder.h"

namespace dtensor::test {
namespace {

using Make = std::function<std::unique_ptr<Optimizer>(const std::vector<at::Tensor>&)>;

template <class O, class Options>
Make named(Options options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    using Group = typename O::Group;
    return std::make_unique<O>(std::vector<Group>{{parameters, options, {"w", "b"}}});
  };
}

std::map<std::string, Make> optimizers() {
  return {{"adamw", named<AdamW>(AdamWOptions{.lr = 0.01, .fused = false})},
          {"amsgrad", named<AdamW>(AdamWOptions{.lr = 0.01, .fused = false, .amsgrad = true})},
          {"sgd", named<SGD>(SGDOptions{.lr = 0.01, .momentum = 0.9, .fused = false})},
          {"sgd without momentum", named<SGD>(SGDOptions{.lr = 0.01, .fused = false})},
          {"adagrad", named<Adagrad>(AdagradOptions{})},
          {"shampoo", named<Shampoo>(ShampooOptions{.lr = 0.01, .frequency = 2, .start = 2, .block_size = 3})},
          {"muon", [](const std::vector<at::Tensor>& p) -> std::unique_ptr<Optimizer> {
             return muon_with_adamw({p[0]}, {.bfloat16 = false}, {p[1]}, {.lr = 0.01, .fused = false});
           }}};
}

// A model whose gradients depend on dropout with the library's random numbers.
struct Training {
  at::Tensor w, b;
  std::unique_ptr<Optimizer> optimizer;
  std::int64_t step = 0;
  Checkpoint state;

  Training(const DeviceMesh& mesh, const Placements& placements, const Make& make)
      : w(distribute_tensor(Draw(1).normal({7, 5}), mesh, placements)),
        b(distribute_tensor(Draw(2).normal({5}), mesh, Placements(placements.size(), Shard(0)))) {
    manual_seed(mesh, 5);
    optimizer = make({w.requires_grad_(), b.requires_grad_()});
    state.add("model", NamedTensors{{"w", &w}, {"b", &b}}).add("optimizer", *optimizer);
    state.add("step", step).add_random("random", mesh);
  }

  double advance(const DeviceMesh& mesh) {
    const auto x = distribute_tensor(Draw(10 + static_cast<std::uint64_t>(step)).normal({6, 7}), mesh,
                                     Placements(static_cast<std::size_t>(mesh.ndim())));
    const at::Tensor loss = at::dropout(at::gelu(at::matmul(x, w) + b), 0.3, true).square().mean();
    loss.backward();
    optimizer->step();
    optimizer->zero_grad();
    ++step;
    return DTensor(loss.detach()).full_tensor().item<double>();
  }
};

struct MeshLayout {
  Shape mesh;
  Placements placements;
};

const std::vector<MeshLayout>& layouts() {
  static const std::vector<MeshLayout> all = {{{1}, {Shard(0)}},
                                              {{3}, {Shard(0)}},
                                              {{2}, {Shard(1)}},
                                              {{2, 2}, {StridedShard(0, 2).as_storage(), Shard(0)}},
                                              {{2, 2}, {Replicate(), Shard(1)}}};
  return all;
}

TEST(CheckpointTraining, OptimizersResume) {
  for (const auto& [name, make] : optimizers()) {
    for (std::size_t i = 0; i < layouts().size(); ++i) {
      const MeshLayout &from = layouts()[i], &to = layouts()[(i + 1) % layouts().size()];
      SCOPED_TRACE(name + " from " + to_string(from.placements) + " to " + to_string(to.placements));
      const Folder folder;
      std::vector<double> expected(3);
      on_mesh(from.mesh, [&, &make = make](const DeviceMesh& mesh) {
        Training training(mesh, from.placements, make);
        for (int step = 0; step < 3; ++step) training.advance(mesh);
        training.state.save(folder / "c", mesh.world(), kQuick);
        std::vector<double> losses;
        for (int step = 0; step < 3; ++step) losses.push_back(training.advance(mesh));
        if (mesh.world().rank() == 0) expected = losses;
      });
      const auto resumed = [&, &make = make](const MeshLayout& layout, double tolerance) {
        on_mesh(layout.mesh, [&](const DeviceMesh& mesh) {
          Training training(mesh, layout.placements, make);
          manual_seed(mesh, 99);
          training.state.load(folder / "c", mesh.world());
          EXPECT_EQ(training.step, 3);
          EXPECT_EQ(get_rng_state(mesh).seed, 5u);
          for (const double loss : expected) {
            EXPECT_NEAR(training.advance(mesh), loss, tolerance * std::abs(loss)) << to_string(layout.placements);
          }
        });
      };
      resumed(from, 0);  // bit for bit
      resumed(to, 1e-9);
    }
  }
}

TEST(CheckpointTraining, StateOfAnotherOptimizerIsRefused) {
  const Folder folder;
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Training adam(mesh, {Shard(0)}, optimizers().at("adamw"));
    adam.advance(mesh);
    adam.state.save(folder / "c", mesh.world(), kQuick);
  });
  expect_error(errors_on(3,
                         [&](const Communicator& world) {
                           const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {3});
                           Training ada(mesh, {Shard(0)}, optimizers().at("adagrad"));
                           ada.state.load(folder / "c", world);
                         }),
               {"not requested", "'optimizer.w.exp_avg'", "'optimizer.b.exp_avg_sq'"});
}

TEST(Registry, ValuesKeepTypeAndBits) {
  const Folder folder;
  const double numbers[] = {0.1, -0.0, 1e-310, 3.0, INFINITY, -INFINITY, NAN};
  run_local(2, [&](Communicator world) {
    for (const double number : numbers) {
      double d = number;
      std::int64_t i = std::numeric_limits<std::int64_t>::min();
      bool flag = true;
      std::string text = "two\nlines \"quoted\"";
      GradScaler scaler;
      scaler.set_state({8, 3});
      Checkpoint state;
      state.add("d", d).add("i", i).add("flag", flag).add("text", text).add("scaler", scaler);
      state.save(folder / "c", world, kQuick);
      scaler.set_state({1, 0});
      d = 0, i = 0, flag = false, text = "";
      state.load(folder / "c", world);
      EXPECT_EQ(std::memcmp(&d, &number, sizeof d), 0) << number;
      EXPECT_EQ(i, std::numeric_limits<std::int64_t>::min());
      EXPECT_TRUE(flag);
      EXPECT_EQ(scaler.get_scale(), 8);
      EXPECT_EQ(scaler.state().good_steps, 3);
      EXPECT_EQ(text, "two\nlines \"quoted\"");
    }
  });
}

TEST(Registry, TiedTensorsAreStoredOnce) {
  const Folder folder;
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::Tensor unsharded = at::arange(12, at::kFloat).view({4, 3});
    at::Tensor in = distribute_tensor(unsharded, mesh, {Shard(0)}), out = in;
    Checkpoint tied;
    tied.add("", NamedTensors{{"in", &in}, {"out", &out}});
    tied.save(folder / "tied", mesh.world(), kQuick);
    EXPECT_EQ(parse_safetensors(folder / "tied/model.safetensors").size(), 1u);
    in.zero_();
    tied.load(folder / "tied", mesh.world());
    EXPECT_TRUE(at::equal(DTensor(out).full_tensor(), unsharded));
    at::Tensor apart = distribute_tensor(at::zeros({4, 3}), mesh, {Shard(1)});
    load_state(folder / "tied", mesh.world(), {{"in", in}, {"out", apart}});
    EXPECT_TRUE(at::equal(DTensor(apart).full_tensor(), unsharded));
    apart.add_(1);
    save_state(folder / "apart", mesh.world(), {{"in", in}, {"out", apart}}, {}, kQuick);
    EXPECT_THROW(tied.load(folder / "apart", mesh.world()), c10::Error);
  });
}

TEST(Async, LaterChangesAreNotSaved) {
  const Folder folder;
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    const at::Tensor unsharded = Draw(3).normal({301, 203});
    const at::Tensor x = distribute_tensor(unsharded, mesh, {Replicate(), Shard(1)}), regular = unsharded.clone();
    const at::Tensor sum = DTensor::from_local(at::ones({2}), mesh, {Partial(), Replicate()}, {2});
    PendingSave pending = save_state_async(folder / "c", mesh.world(), {{"x", x}, {"regular", regular}, {"sum", sum}},
                                           {{"n", 1.5}}, kQuick);
    x.zero_();
    regular.zero_();
    EXPECT_FALSE(std::filesystem::exists(folder / "c"));
    pending.wait();
    EXPECT_TRUE(pending.done());
    const at::Tensor back = distribute_tensor(at::zeros({301, 203}, at::kDouble), mesh, {Shard(0), Shard(0)});
    const at::Tensor two = at::zeros({2});
    load_state(folder / "c", mesh.world(), {{"x", back}, {"regular", regular}, {"sum", two}});
    EXPECT_TRUE(at::equal(DTensor(back).full_tensor(), unsharded));
    EXPECT_TRUE(at::equal(regular, unsharded));
    EXPECT_TRUE(at::equal(two, at::full({2}, 2.0)));
    {
      const PendingSave dropped = save_state_async(folder / "c", mesh.world(), {{"x", x}}, {}, kQuick);
      EXPECT_THROW(save_state(folder / "c/", mesh.world(), {{"x", x}}, {}, kQuick), c10::Error);  // one at a time
    }
    mesh.world().barrier();
    EXPECT_EQ(read_checkpoint_index(folder / "c").entries.size(), 3u);  // the previous checkpoint
    EXPECT_FALSE(std::filesystem::exists(folder / "c.saving"));
  });
}

// There are 6 parameters of 8 MiB, so the peak shows if more than one full parameter is in memory.
TEST(CheckpointTraining, BroadcastOfAFullStateHoldsAtMostOneParameter) {
  constexpr std::int64_t kParameter = 8 << 20, kCount = 6;
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    const bool source = mesh.world().rank() == 1;
    StateTensors full;
    if (source) {
      for (int i = 0; i < kCount; ++i) full.emplace_back("p" + std::to_string(i), at::full({2048, 1024}, i + 0.5));
    }
    const auto place = [](const std::string& name, at::IntArrayRef) {
      return name == "p0" ? Placements{Replicate(), Shard(1)} : Placements{StridedShard(0, 2), Shard(0)};
    };
    const MemoryTimeline memory;
    const StateTensors placed = broadcast_state(full, mesh, place, 1);
    std::int64_t shards = 0;
    for (const auto& [name, t] : placed) shards += static_cast<std::int64_t>(DTensor(t).to_local().nbytes());
    EXPECT_EQ(shards, kParameter / 2 + (kCount - 1) * kParameter / 4);
    EXPECT_LE(memory.peak().bytes, shards + kParameter);
    EXPECT_GE(memory.peak().bytes, shards);
    for (int i = 0; i < kCount; ++i) {
      EXPECT_EQ(placed[static_cast<std::size_t>(i)].first, "p" + std::to_string(i));
      EXPECT_TRUE(at::equal(DTensor(placed[static_cast<std::size_t>(i)].second).full_tensor(),
                            at::full({2048, 1024}, i + 0.5)));
    }
  });
}

TEST(CheckpointTraining, BroadcastReachesAnyLayoutBitForBit) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Draw shapes(seed);
    const Shape shape = mesh_shapes()[static_cast<std::size_t>(shapes.integer(0, 5))];
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      Draw draw(seed);
      const int source = static_cast<int>(draw.integer(0, mesh.size() - 1));
      StateTensors full, targets;
      std::vector<at::Tensor> full_tensors;
      for (int i = 0; i < 4; ++i) {
        const auto dtype = all_dtypes()[static_cast<std::size_t>(draw.integer(0, 10))];
        full_tensors.push_back(any_bits(draw, draw.sizes(draw.integer(0, 3)), dtype));
        const std::string name = "t" + std::to_string(i);
        const Placements placements = any_layout(draw, mesh, full_tensors.back().sizes().vec());
        if (mesh.world().rank() == source) full.emplace_back(name, full_tensors.back());
        const at::Tensor blank = at::zeros_like(full_tensors.back());
        targets.emplace_back(name, draw.coin() ? blank : distribute_tensor(blank, mesh, placements));
      }
      broadcast_state(full, mesh.world(), targets, source);
      for (std::size_t i = 0; i < full_tensors.size(); ++i) {
        const at::Tensor& t = targets[i].second;
        EXPECT_TRUE(bits_of(is_dtensor(t) ? DTensor(t).full_tensor() : t) == bits_of(full_tensors[i])) << seed;
      }
    });
  }
  expect_error(errors_on(3,
                         [](const Communicator& world) {
                           const StateTensors full = {{"layer.w", at::ones({2})}, {"b", at::ones({3})}};
                           broadcast_state(world.rank() == 0 ? full : StateTensors{}, world,
                                           {{"layers.w", at::zeros({2})}, {"b", at::zeros({4})}});
                         }),
               {"'layers.w' (nearest: 'layer.w')", "'layer.w'", "'b' is Float [3] at the source, Float [4] here"});
}

// Parameters are created on meta, sharded, then filled from the state of one rank.
TEST(CheckpointTraining, FullyShardedMetaModelsReceiveTheState) {
  on_mesh({3}, [&](const DeviceMesh& mesh) {
    nn::Linear linear(5, 7, true, at::TensorOptions(at::kMeta));
    fully_shard(linear, mesh);
    StateTensors full, targets;
    if (mesh.world().rank() == 0) full = {{"weight", Draw(1).normal({7, 5}, at::kFloat)}, {"bias", at::ones({7})}};
    for (const auto& [name, t] : linear.named_parameters()) targets.emplace_back(name, *t);
    broadcast_state(full, mesh.world(), targets);
    EXPECT_TRUE(at::equal(DTensor(linear.weight.detach()).full_tensor(), Draw(1).normal({7, 5}, at::kFloat)));
    EXPECT_TRUE(at::equal(DTensor(linear.bias.detach()).full_tensor(), at::ones({7})));
  });
}

}  // namespace
}  // namespace dtensor::test
