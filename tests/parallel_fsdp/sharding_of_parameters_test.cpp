// Parameters that become units: regular, tied, on the meta device, on other meshes, after a tensor parallel plan, of
// modules of both kinds. Also the refused ones.
#include "dtensor/nn.h"
#include "dtensor/parallelize.h"
#include "parallel_fsdp/tower.h"
#include "support/errors.h"

#include <torch/csrc/autograd/autograd.h>

namespace dtensor::test {
namespace {

TEST(FsdpPlacing, AxisOfOneRankNeedsNoCommunication) {
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {1, 1}, {"replicate", "shard"});
    Tower tower(2);
    tower.shard(mesh);  // Rank 1 is outside of the mesh and does not participate.
    int collectives = 0;
    const EventListener listener([&](const Event&) { ++collectives; }, {Event::Kind::collective});
    const auto loss = tower.loss(distribute_tensor(input(), mesh, {Replicate(), Shard(0)}));
    loss.backward();
    EXPECT_EQ(collectives, 0);
    if (mesh.is_member()) {
      EXPECT_EQ(DTensor(tower.w[0]).placements()[1], Shard(0).as_storage());  // The placement of the mesh's axis.
    }
  });
}

TEST(FsdpPlacing, MetaParametersAreNaNUntilInitialized) {
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
    at::Tensor regular = Draw(1).normal({5, 4}).requires_grad_();
    at::Tensor embedding = regular.detach().clone().requires_grad_(), head = embedding;
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
      expect_close(run(embedding, head, sharded(ids, mesh)), run(regular, regular, ids), "loss");
      expect_close(embedding.detach(), regular.detach(), "embedding after the step");
    }
  });
}

// Dense parameters on one mesh, experts on another view of the same ranks: both are units of one model.
TEST(FsdpPlacing, UnitsOfOneModelMayHaveDifferentMeshes) {
  run_local(4, [&](Communicator world) {
    const auto dense = init_device_mesh(world, at::kCPU, {4}, {"shard"});
    const auto sparse = dense.view({2, 2}, {"shard", "ep"});
    Tower regular(2), tower(2);
    tower.w[1] = distribute_tensor(tower.w[1].detach(), sparse["ep"], {Shard(1)}).requires_grad_();
    EXPECT_THROW(fully_shard(tower.list(), dense), c10::Error);
    fully_shard(tower.layer(1), sparse);
    EXPECT_EQ(DTensor(tower.w[1]).placements(), (Placements{Shard(0).as_storage(), Shard(1)}));
    fully_shard(tower.list(), dense);
    const auto h = at::gelu(at::linear(sharded(input(), dense), tower.w[0]));
    const auto moved = DTensor(h).to_local({Shard(0)});
    const auto back = DTensor::from_local(moved, dense.view({2, 2}, {"shard", "ep"}), {Shard(0), Shard(0)}, h.sizes());
    at::gelu(at::linear(DTensor(back).redistribute({Shard(0), Replicate()}), tower.w[1])).square().mean().backward();
    regular.loss(input()).backward();
    expect_same_gradients(tower.w, regular.w);
  });
}

// A tensor parallel plan on the full mesh or on a slice, and then units. Results equal those of one device.
TEST(FsdpPlacing, AfterATensorParallelPlan) {
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
      Stack regular, model;
      Draw draw(8);
      auto from = regular.named_parameters(), to = model.named_parameters();
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
        const auto expected = regular.second.forward(regular.first.forward(x)).square().mean();
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

struct CopyingModule {
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
    CopyingModule model;
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

TEST(FsdpPlacing, JoinedUnitsKeepTheirCounts) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Tower tower(3);
    const auto first = fully_shard(tower.layer(0), mesh), second = fully_shard(tower.layer(1), mesh);
    first.unshard();
    second.unshard();
    second.reshard();
    fully_shard(tower.list(), mesh);
    EXPECT_EQ(first.stats().all_gathers, 2);
    EXPECT_EQ(first.stats().gathered_bytes, first.gathered_bytes());
    EXPECT_GE(first.stats().peak_gathered_bytes, first.gathered_bytes());
    first.reshard();
    EXPECT_EQ(first.stats().gathered_bytes, 0);
  });
}

TEST(FsdpPlacing, GradientOnASliceIsAnErrorBeforeAnyChange) {
  run_local(4, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"shard", "tp"});
    Tower tower(1);
    tower.w[0] = distribute_tensor(tower.w[0].detach(), mesh["tp"], {Shard(0)}).requires_grad_();
    tower.loss(distribute_tensor(input(), mesh["tp"], {Replicate()})).backward();
    const auto text = error_of([&] { tower.shard(mesh); });
    EXPECT_NE(text.find("parameter 'w0' has a gradient on"), std::string::npos) << text;
    EXPECT_TRUE(DTensor(tower.w[0]).mesh() == mesh["tp"]);
    tower.w[0].mutable_grad().reset();
    tower.shard(mesh);
    tower.loss(distribute_tensor(input(), mesh, {Shard(0), Replicate()})).backward();
    const Tower regular(1);
    regular.loss(input()).backward();
    expect_same_gradients(tower.w, regular.w);
  });
}

TEST(FsdpPlacing, InvalidArgumentsAreErrors) {
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    const auto named = mesh.view({2, 2}, {"a", "b"});
    Tower tower(1);
    EXPECT_THROW(fully_shard(tower.list(), named), c10::Error);  // No axis "shard".
    EXPECT_THROW(fully_shard(tower.list(), named, {.shard_axes = {"c"}}), c10::Error);
    EXPECT_THROW(fully_shard(tower.list(), named, {.reshard_after_forward = std::int64_t{3}, .shard_axes = {"b"}}),
                 c10::Error);
    EXPECT_THROW(fully_shard(tower.list(), mesh, {.shard_axes = {"shard", "cp"}}), c10::Error);  // Axes without names.
    EXPECT_THROW(fully_shard(tower.list(), mesh.view({4}), {.shard_axes = {"shard", "cp"}}), c10::Error);
    tower.w[0] = distribute_tensor(tower.w[0].detach(), named, {Replicate(), Shard(0)});
    EXPECT_THROW(fully_shard(tower.list(), named, {.shard_axes = {"b"}}), c10::Error);  // A shard for computation.
    const auto used = at::ones({2}, at::kDouble).requires_grad_();
    auto result = used * 2;
    EXPECT_THROW(fully_shard({{"result", &result}}, named, {.shard_axes = {"b"}}), c10::Error);
  });
}

}  // namespace
}  // namespace dtensor::test
