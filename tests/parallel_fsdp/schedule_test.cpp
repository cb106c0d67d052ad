// What the schedule does besides being right: how much it holds, what it does about parameters that are not used,
// frozen, tied, on other meshes or on no device yet, and what becomes of a gathered copy whose parameter changes.
#include "dtensor/nn.h"
#include "dtensor/parallelize.h"
#include "parallel_fsdp/model.h"

#include <ATen/autocast_mode.h>
#include <rapidcheck/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace dtensor::test {
namespace {

// A tower of square layers, for counting.
struct Tower {
  std::vector<at::Tensor> w;
  explicit Tower(int layers, std::int64_t width = 6, at::ScalarType dtype = at::kDouble) {
    Draw draw(11);
    for (int i = 0; i < layers; ++i) w.push_back(draw.normal({width, width}, dtype).mul_(0.4).requires_grad_());
  }
  NamedTensors layer(int i) { return {{"w" + std::to_string(i), &w[static_cast<std::size_t>(i)]}}; }
  NamedTensors list() {
    NamedTensors all;
    for (int i = 0; i < static_cast<int>(w.size()); ++i) all.push_back(layer(i)[0]);
    return all;
  }
  std::vector<FsdpUnit> shard(const DeviceMesh& mesh, const FsdpOptions& options = {}) {
    std::vector<FsdpUnit> units;
    for (int i = 0; i < static_cast<int>(w.size()); ++i) units.push_back(fully_shard(layer(i), mesh, options));
    fully_shard(list(), mesh, options);  // joins them
    return units;
  }
  at::Tensor loss(at::Tensor x, int skip = -1) const {
    for (int i = 0; i < static_cast<int>(w.size()); ++i) {
      if (i != skip) x = at::gelu(at::linear(x, w[static_cast<std::size_t>(i)]));
    }
    return x.square().mean();
  }
};

at::Tensor input(std::int64_t rows = 4, std::int64_t width = 6) { return Draw(5).normal({rows, width}); }
at::Tensor sharded(const at::Tensor& t, const DeviceMesh& mesh) { return distribute_tensor(t, mesh, {Shard(0)}); }

void expect_same_gradients(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto what = "gradient " + std::to_string(i);
    ASSERT_EQ(got[i].grad().defined(), expected[i].grad().defined()) << what;
    if (got[i].grad().defined()) expect_close(got[i].grad(), expected[i].grad(), what);
  }
}

TEST(FsdpSchedule, HoldsAsManyUnitsAsTheBudgetSays) {
  const std::int64_t unit = 320;  // 6 * 6 * 8, aligned
  for (std::int64_t ahead = 0; ahead < 4; ++ahead) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      Tower tower(6);
      const auto units = tower.shard(mesh, {.prefetch_bytes = ahead * unit});
      ASSERT_EQ(units[0].gathered_bytes(), unit);
      for (int step = 0; step < 3; ++step) {
        units[0].reset_peaks();
        const auto before = units[0].stats();
        tower.loss(sharded(input(), mesh)).backward();
        const auto after = units[0].stats();
        // The unit in use and those that wait for theirs. 6 gathers, and again but for the last layer and, whose input
        // needs no gradient, the first. A unit that is fetched ahead in the first step's backward may be in vain.
        EXPECT_LE(after.peak_gathered_bytes, (1 + ahead) * unit);
        if (step > 0) {
          EXPECT_EQ(after.peak_gathered_bytes, (1 + ahead) * unit);
          EXPECT_EQ(after.all_gathers - before.all_gathers, 6 + 4);
        }
        EXPECT_EQ(after.reduce_scatters - before.reduce_scatters, 6);
        EXPECT_LE(after.peak_unreduced_bytes, units[0].gradient_bytes());  // never piled up
        EXPECT_EQ(after.gathered_bytes, 0);
      }
    });
  }
}

TEST(FsdpSchedule, PredictedMemoryIsMeasuredMemory) {
  for (const bool reshard : {true, false}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      Net net(3);
      FsdpOptions options;
      options.reshard_after_forward = reshard;
      const std::vector<FsdpUnit> units = {fully_shard(net.list("a."), mesh, options),
                                           fully_shard(net.list("b."), mesh, options),
                                           fully_shard(net.list(), mesh, options)};
      const auto predicted = predict_memory(units, 2);
      std::int64_t shards = 0, gradients = 0;
      for (const auto& [name, slot] : net.list()) shards += DTensor(slot->detach()).to_local().nbytes();
      for (int step = 0; step < 2; ++step) {
        const auto d = data(net, 1, 5);
        net.loss(distribute_tensor(d.x, mesh, {Shard(0)}), distribute_tensor(d.ids, mesh, {Shard(0)})).backward();
      }
      for (const auto& [name, slot] : net.list()) {
        if (slot->grad().defined()) gradients += DTensor(slot->grad()).to_local().nbytes();
      }
      EXPECT_EQ(predicted.parameters, shards);
      EXPECT_EQ(predicted.optimizer, 2 * shards);
      EXPECT_LE(gradients, predicted.gradients);  // one is not used
      EXPECT_EQ(units[0].stats().peak_gathered_bytes, predicted.gathered);
      EXPECT_LE(units[0].stats().peak_unreduced_bytes, predicted.unreduced);
      EXPECT_GE(2 * units[0].stats().peak_unreduced_bytes, predicted.unreduced);
    });
  }
}

// Layers are dropped at random, gradients are wanted of some only, some are frozen: alike on every rank.
RC_GTEST_PROP(FsdpSchedule, EveryStepMayUseOtherParameters, ()) {
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 100000);
  const auto ranks = *rc::gen::inRange(1, 4);
  const auto reshard = *rc::gen::arbitrary<bool>();
  const auto ahead = *rc::gen::inRange<std::int64_t>(0, 3);
  on_mesh({ranks}, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    Tower plain(5), tower(5);
    tower.shard(mesh, {.reshard_after_forward = reshard, .prefetch_bytes = ahead * 320});
    for (int step = 0; step < 5; ++step) {
      const int skip = static_cast<int>(draw.integer(-1, 4));
      for (std::size_t i = 0; i < 5; ++i) {
        const bool wanted = draw.integer(0, 3) > 0 || i == 4;
        plain.w[i].set_requires_grad(wanted);
        tower.w[i].set_requires_grad(wanted);
      }
      if (draw.coin()) {  // a forward pass for its own sake
        const at::NoGradGuard no_grad;
        expect_close(tower.loss(sharded(input(), mesh)), plain.loss(input()), "evaluation");
      }
      if (draw.integer(0, 4) == 0) (void)tower.loss(sharded(input(), mesh));  // one whose backward never comes
      auto expected = plain.loss(input(), skip), loss = tower.loss(sharded(input(), mesh), skip);
      expect_close(loss.detach(), expected.detach(), "loss");
      if (!expected.requires_grad()) continue;
      expected.backward();
      loss.backward();
      expect_same_gradients(tower.w, plain.w);
      if (draw.coin()) continue;  // accumulates
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < 5; ++i) {
        if (!plain.w[i].grad().defined()) continue;
        plain.w[i].sub_(plain.w[i].grad(), 0.1);
        tower.w[i].sub_(tower.w[i].grad(), 0.1);
        plain.w[i].mutable_grad().reset();
        tower.w[i].mutable_grad().reset();
      }
    }
  });
  RC_ASSERT(!::testing::Test::HasFailure());
}

// Any view or cast of a parameter, used by anything: one gather of the unit serves them all.
RC_GTEST_PROP(FsdpSchedule, ViewsAndCastsAreFoundInTheUnit, ()) {
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 100000);
  on_mesh({2, 2}, [&](const DeviceMesh& mesh2) {
    const auto mesh = mesh2.view({2, 2}, {"shard", "tp"});
    Draw draw(seed);
    const Shape sizes = {draw.integer(1, 5), 2 * draw.integer(1, 3), draw.integer(1, 4)};
    at::Tensor plain = draw.normal(sizes, at::kFloat);
    if (draw.coin()) plain = plain.permute({1, 0, 2});
    const Placement tp = draw.coin() ? Placement(Shard(draw.integer(0, 2))) : Placement(Replicate());
    at::Tensor w = distribute_tensor(plain, mesh, {Replicate(), tp}).requires_grad_();
    const auto unit = fully_shard({{"w", &w}}, mesh);
    int gathers = 0, uses = 0;
    std::string log = c10::str("seed ", seed, ": ", DTensor(w).spec_str(), "\n");
    const EventListener listener(
        [&](const Event& e) {
          log += e.name + " " + e.axis + "\n";
          gathers += e.axis.find("shard") != std::string::npos;
        },
        {Event::Kind::collective});
    const auto view = [&](at::Tensor t, Draw d) {
      for (int i = 0; i < 4; ++i) {
        const auto dims = t.dim();
        switch (d.integer(0, 7)) {
          case 0:
            t = t.transpose(0, dims - 1);
            break;
          case 1:
            t = t.unsqueeze(d.integer(0, dims));
            break;
          case 2:
            t = t.size(0) > 1 ? t.narrow(0, 1, t.size(0) - 1) : t;
            break;
          case 3:
            t = dims > 1 ? t.select(dims - 1, t.size(dims - 1) - 1) : t;
            break;
          case 4:
            t = t.size(1 % dims) % 2 == 0 ? t.unflatten(1 % dims, {2, t.size(1 % dims) / 2}) : t;
            break;
          case 5:
            t = t.detach();
            break;
          case 6:
            if (i == 0) t = t.to(at::kDouble);  // of the whole parameter
            break;
          default:
            t = t.slice(dims - 1, 0, t.size(dims - 1), 2);
            break;
        }
      }
      return t;
    };
    for (int i = 0; i < 3; ++i) {
      Draw same = draw;
      const auto expected = view(plain, same), got = view(w, same);
      const at::NoGradGuard no_grad;
      // One that had to be moved, over tp or to shards that are no storage, stands for itself.
      const bool found = tp.is_replicate() && DTensor(got).placements()[0].is_storage();
      log += DTensor(got).spec_str() + (found ? " found\n" : "\n");
      gathers = 0;
      const auto sine = got.sin(), power = got.exp();
      uses += found ? gathers : 0;
      expect_close(sine, expected.sin(), "view");
      expect_close(power, expected.exp(), "view again");
      (void)draw.integer(0, 1);
    }
    EXPECT_LE(unit.stats().all_gathers, 1);
    EXPECT_LE(uses, 1) << log;
  });
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(FsdpSchedule, OneGatherServesLinearAndWhatItSavedForBackward) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower tower(1);
    const auto units = tower.shard(mesh);
    int gathers = 0;
    const EventListener listener([&](const Event& e) { gathers += e.name.find("all_gather") != std::string::npos; });
    const auto x = sharded(input(), mesh).requires_grad_();
    auto y = at::linear(at::linear(x, tower.w[0]), tower.w[0].to(at::kFloat).to(at::kDouble));
    y.sum().backward();
    EXPECT_EQ(units[0].stats().all_gathers, 1);  // in use from forward into backward
  });
}

TEST(FsdpSchedule, AGatheredCopyIsNoStaleCopy) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower plain(2), tower(2);
    tower.shard(mesh, {.reshard_after_forward = false});
    const at::NoGradGuard no_grad;
    expect_close(tower.loss(sharded(input(), mesh)), plain.loss(input()), "before");
    const auto fresh = Draw(77).normal({6, 6});
    plain.w[0].copy_(fresh);
    tower.w[0].copy_(fresh);  // what loading a plain state does
    expect_close(tower.loss(sharded(input(), mesh)), plain.loss(input()), "after copy_");
    plain.w[1].view({36}).mul_(0.5);
    DTensor(tower.w[1]).to_local().mul_(0.5);
    expect_close(tower.loss(sharded(input(), mesh)), plain.loss(input()), "after a write to the shard");
    const auto cast = tower.w[0].to(at::kFloat);
    tower.w[0].mul_(3);
    expect_close(cast.sin(), plain.w[0].to(at::kFloat).sin(), "an old cast keeps its values", 1e-6);
  });
}

TEST(FsdpSchedule, AutogradGradLeavesTheAccumulatedGradient) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower plain(2), tower(2);
    tower.shard(mesh);
    plain.loss(input()).backward();
    tower.loss(sharded(input(), mesh)).backward();
    const auto expected = torch::autograd::grad({plain.loss(input())}, {plain.w[0]})[0];
    const auto got = torch::autograd::grad({tower.loss(sharded(input(), mesh))}, {tower.w[0]})[0];
    expect_close(got, expected, "autograd::grad");
    expect_same_gradients(tower.w, plain.w);
  });
}

TEST(FsdpSchedule, APassThatThrewIsForgotten) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower plain(3), tower(3);
    const auto unit = fully_shard(tower.list(), mesh);
    auto h = at::gelu(at::linear(sharded(input(), mesh), tower.w[0]));
    h.register_hook([](const at::Tensor&) { TORCH_CHECK(false, "stop"); });
    EXPECT_THROW(at::linear(h, tower.w[1]).sum().backward(), c10::Error);  // the gradient of w1 has come, w0's has not
    plain.loss(input(), /*skip=*/1).backward();
    tower.loss(sharded(input(), mesh), /*skip=*/1).backward();
    expect_same_gradients(tower.w, plain.w);
    EXPECT_EQ(unit.stats().gathered_bytes, 0);
    EXPECT_EQ(unit.stats().unreduced_bytes, 0);
  });
}

TEST(FsdpPlacing, OneRankAlongAnAxisCostsNothing) {
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {1, 1}, {"replicate", "shard"});
    Tower tower(2);
    tower.shard(mesh);  // rank 1 is outside: it takes part in nothing
    int collectives = 0;
    const EventListener listener([&](const Event&) { ++collectives; }, {Event::Kind::collective});
    const auto loss = tower.loss(distribute_tensor(input(), mesh, {Replicate(), Shard(0)}));
    loss.backward();
    EXPECT_EQ(collectives, 0);
    if (mesh.is_member()) {
      EXPECT_EQ(DTensor(tower.w[0]).placements()[1], Shard(0).as_storage());  // as the mesh says
    }
  });
}

TEST(FsdpPlacing, MetaParametersGetTheirPartAndAreNaNUntilReset) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    at::Tensor w = at::empty({5, 3}, at::TensorOptions(at::kFloat).device(at::kMeta)).requires_grad_();
    at::Tensor tied = w;
    fully_shard({{"w", &w}, {"tied", &tied}}, mesh);
    EXPECT_TRUE(w.is_same(tied));
    EXPECT_TRUE(w.requires_grad());
    EXPECT_EQ(DTensor(w.detach()).to_local().size(0), mesh.coordinate()->at(0) == 0 ? 3 : 2);
    EXPECT_TRUE(DTensor(w.detach()).full_tensor().isnan().all().item<bool>());
    manual_seed(mesh, 3);
    const at::NoGradGuard no_grad;
    w.normal_();
    manual_seed(mesh, 3);
    EXPECT_TRUE(
        at::equal(DTensor(w.detach()).full_tensor(), DTensor(at::Tensor(empty({5, 3}, mesh)).normal_()).full_tensor()));
  });
}

TEST(FsdpPlacing, TiedParametersBelongToTheirFirstUnit) {
  on_mesh({3}, [&](const DeviceMesh& mesh) {
    at::Tensor plain = Draw(1).normal({5, 4}).requires_grad_();
    at::Tensor embedding = plain.detach().clone().requires_grad_(), head = embedding;
    at::Tensor* slots[] = {&embedding, &head};
    const auto root = fully_shard({{"embedding", slots[0]}, {"head", slots[1]}}, mesh);
    const auto rest = fully_shard({{"head", slots[1]}}, mesh);
    EXPECT_EQ(root.names(), std::vector<std::string>{"embedding"});
    EXPECT_TRUE(rest.names().empty());
    const auto ids = Draw(2).integers({6}, 5);
    for (int step = 0; step < 2; ++step) {
      const auto run = [](const at::Tensor& in, const at::Tensor& out, const at::Tensor& i) {
        auto loss = at::cross_entropy_loss(at::linear(at::embedding(in, i), out), i);
        loss.backward();
        const at::NoGradGuard no_grad;
        in.sub_(in.grad(), 0.5);
        in.mutable_grad().reset();
        return loss.detach();
      };
      expect_close(run(embedding, head, sharded(ids, mesh)), run(plain, plain, ids), "loss");
      expect_close(embedding.detach(), plain.detach(), "every row is trained");
    }
  });
}

// Dense parameters on one mesh, experts on another view of the same ranks: units of one model.
TEST(FsdpPlacing, UnitsOfOneModelMayDifferInMesh) {
  run_local(4, [&](Communicator world) {
    const auto dense = init_device_mesh(world, at::kCPU, {4}, {"shard"});
    const auto sparse = dense.view({2, 2}, {"shard", "ep"});
    Tower plain(2), tower(2);
    tower.w[1] = distribute_tensor(tower.w[1].detach(), sparse["ep"], {Shard(1)}).requires_grad_();
    EXPECT_THROW(fully_shard(tower.list(), dense), c10::Error);
    fully_shard(tower.layer(1), sparse);
    EXPECT_EQ(DTensor(tower.w[1]).placements(), (Placements{Shard(0).as_storage(), Shard(1)}));
    fully_shard(tower.list(), dense);
    const auto h = at::gelu(at::linear(sharded(input(), dense), tower.w[0]));
    const auto moved = DTensor(h).to_local({Shard(0)});
    const auto back = DTensor::from_local(moved, dense.view({2, 2}, {"shard", "ep"}), {Shard(0), Shard(0)}, h.sizes());
    at::gelu(at::linear(DTensor(back).redistribute({Shard(0), Replicate()}), tower.w[1])).square().mean().backward();
    plain.loss(input()).backward();
    expect_same_gradients(tower.w, plain.w);
  });
}

// A plan of tensor parallelism first, on the whole mesh or on its slice; then units. As one device.
TEST(FsdpPlacing, OnTopOfAPlan) {
  const ParallelPlan plan = {{"*.attn.q_proj", ColwiseParallel()}, {"*.attn.k_proj", ColwiseParallel()},
                             {"*.attn.v_proj", ColwiseParallel()}, {"*.attn.o_proj", RowwiseParallel()},
                             {"*.mlp.up_proj", ColwiseParallel()}, {"*.mlp.down_proj", RowwiseParallel()}};
  struct Stack final : nn::Module {
    nn::Block first{{.hidden = 8, .heads = 2, .bias = true, .tensor = at::kDouble},
                    {.hidden = 8, .ffn = 10, .bias = true, .tensor = at::kDouble}};
    nn::Block second{{.hidden = 8, .heads = 2, .tensor = at::kDouble}, {.hidden = 8, .ffn = 6, .tensor = at::kDouble}};
    Stack() {
      register_module("first", first);
      register_module("second", second);
    }
  };
  for (const bool on_slice : {false, true}) {
    run_local(4, [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"shard", "tp"});
      Stack plain, model;
      Draw draw(8);
      auto from = plain.named_parameters(), to = model.named_parameters();
      for (std::size_t i = 0; i < from.size(); ++i) {
        const at::NoGradGuard no_grad;
        from[i].second->copy_(draw.normal(from[i].second->sizes().vec()).mul_(0.3));
        to[i].second->copy_(*from[i].second);
      }
      on_slice ? parallelize(model, mesh["tp"], plan) : parallelize(model, mesh, plan);
      const auto unit = fully_shard(model.first, mesh);
      fully_shard(model, mesh);
      EXPECT_EQ(DTensor(model.first.attn.q_proj.weight).placements(),
                (Placements{StridedShard(0, 2).as_storage(), Shard(0)}));
      const auto x = draw.normal({4, 3, 8});
      for (int step = 0; step < 2; ++step) {
        const auto expected = plain.second.forward(plain.first.forward(x)).square().mean();
        expected.backward();
        const auto in = distribute_tensor(x, mesh, {Shard(0), Replicate()});
        const auto loss = model.second.forward(model.first.forward(in)).square().mean();
        loss.backward();
        expect_close(loss.detach(), expected.detach(), "loss");
        for (std::size_t i = 0; i < from.size(); ++i) {
          expect_close(to[i].second->grad(), from[i].second->grad(), from[i].first);
        }
      }
      EXPECT_EQ(unit.stats().reduce_scatters, 2 * 2);
    });
  }
}

struct HandsOutCopies {
  struct Item {
    std::string name;
    at::Tensor tensor;
    const std::string& key() const { return name; }
    const at::Tensor& value() const { return tensor; }
  };
  std::vector<Item> items;
  const std::vector<Item>& named_parameters() const { return items; }
};

TEST(FsdpPlacing, ModulesOfBothKinds) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    nn::Linear linear(3, 5);
    EXPECT_EQ(fully_shard(linear, mesh).names(), (std::vector<std::string>{"weight", "bias"}));
    EXPECT_EQ(DTensor(linear.weight).placements(), Placements{Shard(0).as_storage()});
    HandsOutCopies model;
    {
      const MeshScope scope(mesh);
      model.items.push_back({"w", at::ones({4, 4}).requires_grad_()});
    }
    const auto unit = fully_shard(model, mesh);
    EXPECT_EQ(DTensor(model.items[0].tensor).placements(), Placements{Shard(0).as_storage()});
    at::linear(distribute_tensor(at::ones({2, 4}), mesh, {Shard(0)}), model.items[0].tensor).sum().backward();
    EXPECT_EQ(unit.stats().reduce_scatters, 1);
    model.items = {{"w", at::ones({4, 4})}};
    EXPECT_THROW(fully_shard(model, mesh), c10::Error);
  });
}

// A norm of every parameter, say: units of which a part is read do not stay.
TEST(FsdpSchedule, ReadingParametersOutsideTrainingHoldsLittle) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower tower(8);
    std::vector<FsdpUnit> units;
    for (int i = 0; i < 8; i += 2) {
      units.push_back(fully_shard({tower.layer(i)[0], tower.layer(i + 1)[0]}, mesh));
    }
    fully_shard(tower.list(), mesh);
    const at::NoGradGuard no_grad;
    for (int i = 0; i < 8; i += 2) (void)tower.w[static_cast<std::size_t>(i)].abs().sum();
    EXPECT_LE(units[0].stats().peak_gathered_bytes, 3 * units[0].gathered_bytes());
  });
}

TEST(FsdpPlacing, MistakesAreSaid) {
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    const auto named = mesh.view({2, 2}, {"a", "b"});
    Tower tower(1);
    EXPECT_THROW(fully_shard(tower.list(), named), c10::Error);  // no axis "shard"
    EXPECT_THROW(fully_shard(tower.list(), named, {.shard_axis = "c"}), c10::Error);
    EXPECT_THROW(fully_shard(tower.list(), named, {.reshard_after_forward = std::int64_t{3}, .shard_axis = "b"}),
                 c10::Error);
    tower.w[0] = distribute_tensor(tower.w[0].detach(), named, {Replicate(), Shard(0)});
    EXPECT_THROW(fully_shard(tower.list(), named, {.shard_axis = "b"}), c10::Error);  // split for computing
    const auto used = at::ones({2}, at::kDouble).requires_grad_();
    auto result = used * 2;
    EXPECT_THROW(fully_shard({{"result", &result}}, named, {.shard_axis = "b"}), c10::Error);
  });
}

// A bf16 model with fp32 norms: activations stay bf16, what is gathered is bf16, gradients and their sum are fp32.
TEST(FsdpPrecision, ComputesInOneDtypeAndKeepsAnother) {
  for (const auto reduce : {at::kFloat, at::kBFloat16}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      Net plain(9, at::kFloat), net(9, at::kFloat);
      FsdpOptions options;
      options.precision = {.param_dtype = at::kBFloat16,
                           .reduce_dtype = reduce,
                           .output_dtype = at::kFloat,
                           .param_dtype_of = {{"*.ln.*", at::kFloat}}};
      const auto a = fully_shard(net.list("a."), mesh, options), b = fully_shard(net.list("b."), mesh, options);
      const auto root = fully_shard(net.list(), mesh, options);
      const auto d = data(net, 4, 6, at::kFloat);
      std::int64_t reduced = 0;
      {
        const ComputeScope scope(net.list());
        EXPECT_EQ(net.p["a.w"].scalar_type(), at::kBFloat16);
        EXPECT_EQ(net.p["b.ln.w"].scalar_type(), at::kFloat);
        const auto h = at::layer_norm(at::linear(sharded(d.x, mesh).to(at::kBFloat16), net.p["a.w"]),
                                      {net.p["a.w"].size(0)}, net.p["b.ln.w"], net.p["b.ln.b"]);
        EXPECT_EQ(h.scalar_type(), at::kBFloat16);  // the norm does not widen the stream
        const auto loss = scope.output(net.loss(sharded(d.x, mesh).to(at::kBFloat16), sharded(d.ids, mesh)));
        EXPECT_EQ(loss.scalar_type(), at::kFloat);
        EXPECT_NEAR(DTensor(loss.detach()).full_tensor().item<float>(), plain.loss(d.x, d.ids).item<float>(),
                    0.05 * plain.loss(d.x, d.ids).item<float>());
        const EventListener listener([&](const Event& e) { reduced += e.name == "reduce_scatter" ? e.bytes : 0; },
                                     {Event::Kind::collective});
        loss.backward();
      }
      EXPECT_EQ(net.p["a.w"].scalar_type(), at::kFloat);
      EXPECT_EQ(root.stats().reduce_scatters, 3);
      plain.loss(d.x, d.ids).backward();
      for (const auto& [name, t] : net.p) {
        if (!t.grad().defined()) continue;
        EXPECT_EQ(t.grad().scalar_type(), at::kFloat);
        const auto expected = plain.p[name].grad();
        const auto error = (DTensor(t.grad()).full_tensor() - expected).norm().item<float>();
        EXPECT_LE(error, 0.1 * expected.norm().item<float>() + 0.05) << name;
      }
    });
  }
}

TEST(FsdpPrecision, AutocastFindsTheUnit) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Tower tower(2, 6, at::kFloat);
    const auto units = tower.shard(mesh, {.precision = {.param_dtype = at::kBFloat16}});
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const auto loss = tower.loss(sharded(input().to(at::kFloat), mesh));
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    loss.backward();
    EXPECT_EQ(units[0].stats().all_gathers, 2);  // the last layer stays, the first is not needed again
    EXPECT_EQ(units[0].gathered_bytes(), 128);   // 72 bytes of bf16, aligned
    EXPECT_EQ(tower.w[0].grad().scalar_type(), at::kFloat);
  });
}

}  // namespace
}  // namespace dtensor::test
