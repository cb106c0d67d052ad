// Calls with regular tensors: each rank computes on its local data, and gradients are averaged over the ranks. The
// reference runs the data of each rank on one device and averages the gradients.
#include "dtensor/checkpoint_activations.h"
#include "dtensor/dtensor.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

// The result of a row depends on the other rows and on their number, and a layer is called with constants only.
struct Layer : nn::Callable<Layer> {
  explicit Layer(std::int64_t width) : linear(width, width, true, at::kDouble), table(5, width, -1, at::kDouble) {
    register_module("linear", linear), register_module("table", table);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto h = linear(x);
    const auto constant = table(at::arange(5, at::kLong)).sum(0);
    return at::tanh(h.matmul(h.t()).softmax(0).matmul(h) + constant) * x.size(0);
  }
  nn::Linear linear;
  nn::Embedding table;
};

struct Stack : nn::Callable<Stack> {
  Stack(int layers, bool recompute) : scale(at::ones({}, at::kDouble)), recompute_(recompute) {
    register_parameter("scale", scale);
    for (int i = 0; i < layers; ++i) {
      this->layers.push_back(std::make_unique<Layer>(6));
      register_module("layers." + std::to_string(i), *this->layers.back());
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) {
      const auto run = [&layer](const at::Tensor& h) { return (*layer)(h); };
      x = recompute_ ? checkpoint(run, x) : run(x);
    }
    return x * scale;
  }
  at::Tensor scale;
  std::vector<std::unique_ptr<Layer>> layers;

 private:
  bool recompute_;
};

void fill(Stack& stack, std::uint64_t seed) {
  Draw draw(seed);
  const at::NoGradGuard no_grad;
  for (auto& [name, slot] : stack.named_parameters())
    slot->copy_(draw.normal(slot->sizes().vec(), at::kDouble).mul_(0.3));
}

at::Tensor data_of(int rank) {
  Draw draw(100 + static_cast<std::uint64_t>(rank));
  return draw.normal({2 + rank % 3, 6}, at::kDouble);
}

TEST(FsdpLocalData, GradientsAreAveragedOverRanks) {
  struct Case {
    std::vector<std::int64_t> shape;
    bool units, recompute;
  };
  for (const Case& c :
       {Case{{1}, true, false}, {{2}, false, false}, {{2}, true, true}, {{3}, true, false}, {{2, 2}, true, true}}) {
    Stack regular(3, false);
    fill(regular, 7);
    std::int64_t ranks = 1;
    for (const auto n : c.shape) ranks *= n;
    for (int r = 0; r < ranks; ++r) (regular.forward(data_of(r)).square().mean() / ranks).backward();
    on_mesh(c.shape, [&](const DeviceMesh& mesh) {
      Stack stack(3, c.recompute);
      fill(stack, 7);
      std::vector<FsdpUnit> units;
      for (auto& layer : stack.layers) {
        if (c.units) units.push_back(fully_shard(*layer, mesh));
      }
      units.push_back(fully_shard(stack, mesh));
      const int rank = mesh.communicator().rank();
      for (int step = 0; step < 2; ++step) {
        for (auto& p : stack.parameters()) p.mutable_grad().reset();
        const auto y = stack(data_of(rank));
        EXPECT_FALSE(is_dtensor(y));
        EXPECT_TRUE(at::allclose(y, regular.forward(data_of(rank))));
        y.square().mean().backward();
        const auto sharded = stack.parameters(), expected = regular.parameters();
        for (std::size_t i = 0; i < sharded.size(); ++i) {
          ASSERT_TRUE(is_dtensor(sharded[i]));
          EXPECT_TRUE(at::allclose(DTensor(sharded[i].grad()).full_tensor(), expected[i].grad()));
        }
        EXPECT_EQ(units[0].stats().gathered_bytes, 0);
      }
    });
  }
}

TEST(FsdpLocalData, DTensorsKeepGlobalSemantics) {
  Stack regular(2, false);
  fill(regular, 3);
  const auto x = data_of(2);
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Stack stack(2, false);
    fill(stack, 3);
    for (auto& layer : stack.layers) fully_shard(*layer, mesh);
    fully_shard(stack, mesh);
    const auto y = stack(at::Tensor(distribute_tensor(x, mesh, {Shard(0)})));
    EXPECT_TRUE(at::allclose(DTensor(y).full_tensor(), regular.forward(x)));
  });
}

TEST(FsdpLocalData, OneGatherInForwardAndOneInBackward) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Stack stack(4, false);
    fill(stack, 5);
    std::vector<FsdpUnit> units;
    for (auto& layer : stack.layers) units.push_back(fully_shard(*layer, mesh));
    fully_shard(stack, mesh);
    for (int step = 0; step < 3; ++step) {
      const auto before = units[0].stats();
      stack(data_of(mesh.communicator().rank())).sum().backward();
      const auto after = units[0].stats();
      EXPECT_EQ(after.all_gathers - before.all_gathers, step == 0 ? 8 : 7);  // Backward's first unit stays gathered.
      EXPECT_EQ(after.reduce_scatters - before.reduce_scatters, 4);
    }
    EXPECT_LE(units[0].stats().peak_gathered_bytes, 2 * units[0].gathered_bytes());
  });
}

// A unit that is called with constants inside a recomputed segment of a call on DTensors.
struct ConstantsInSegment : nn::Module {
  explicit ConstantsInSegment(bool recompute) : table(5, 6, -1, at::kDouble), recompute_(recompute) {
    register_module("table", table);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto run = [this](const at::Tensor& h) {
      return at::tanh(h + call(table, at::arange(5, at::kLong)).sum(0)).square();
    };
    return recompute_ ? checkpoint(run, x) : run(x);
  }
  nn::Embedding table;

 private:
  bool recompute_;
};

TEST(FsdpLocalData, RecomputationHasTheSemanticsOfItsForward) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::linspace(-1, 1, 24, at::kDouble).view({4, 6}), mesh, {Shard(0)});
    const auto gradient = [&](bool recompute) {
      ConstantsInSegment model(recompute);
      model.table.parameters()[0].detach().copy_(at::linspace(0, 1, 30, at::kDouble).view({5, 6}));
      // Scales gradients with local semantics only, which have the same values otherwise.
      fully_shard(model.table, mesh).set_gradient_divide_factor(1);
      call(model, at::Tensor(x).detach().requires_grad_()).sum().backward();
      return DTensor(model.table.parameters()[0].grad()).full_tensor();
    };
    expect_close(gradient(true), gradient(false), "the gradient of the table");
  });
}

TEST(FsdpLocalData, DivideFactorReplacesTheNumberOfRanks) {
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    Stack stack(1, false), twin(1, false);
    fill(stack, 5), fill(twin, 5);
    fully_shard(stack, mesh).set_gradient_divide_factor(2);
    fully_shard(twin, mesh);
    for (auto* model : {&stack, &twin}) call(*model, data_of(mesh.communicator().rank())).sum().backward();
    for (std::size_t i = 0; i < stack.parameters().size(); ++i) {
      const auto mean = DTensor(twin.parameters()[i].grad()).full_tensor();
      EXPECT_TRUE(at::allclose(DTensor(stack.parameters()[i].grad()).full_tensor(), mean * 2));
    }
  });
}

}  // namespace
}  // namespace dtensor::test
