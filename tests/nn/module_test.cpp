// Module and its layers: names, tied parameters, initial values, and equal results sharded and unsharded.
#include "dtensor/nn.h"

#include "support/ranks.h"

namespace {

using namespace dtensor;
using test::on_mesh;

nn::Block make_block() {
  return nn::Block({.hidden = 12, .heads = 6, .kv_heads = 2, .bias = true},
                   {.hidden = 12, .ffn = 20, .activation = nn::Activation::swiglu, .bias = true});
}

std::vector<std::string> names_of(const NamedTensors& list) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : list) names.push_back(name);
  return names;
}

TEST(Module, ListsParametersInRegistrationOrder) {
  nn::Block block({.hidden = 4, .heads = 2}, {.hidden = 4, .ffn = 8});
  const std::vector<std::string> expected = {
      "ln1.weight",         "ln1.bias",   "attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight",
      "attn.o_proj.weight", "ln2.weight", "ln2.bias",           "mlp.up_proj.weight", "mlp.down_proj.weight"};
  EXPECT_EQ(names_of(block.named_parameters()), expected);
  EXPECT_EQ(names_of(block.named_parameters("h.0"))[0], "h.0.ln1.weight");
  EXPECT_EQ(block.named_modules("h.0")[2].first, "h.0.attn");
  for (const at::Tensor& p : block.parameters()) EXPECT_TRUE(p.requires_grad());
}

struct Counter : nn::Module {
  Counter() : count(at::zeros({2})) { register_buffer("count", count); }
  using Module::register_buffer;
  using Module::register_module;
  using Module::register_parameter;
  at::Tensor count;
};

TEST(Module, BuffersTrainingModeAndDuplicateNames) {
  Counter outer, inner;
  outer.register_module("inner", inner);
  EXPECT_EQ(names_of(outer.named_buffers()), (std::vector<std::string>{"count", "inner.count"}));
  EXPECT_FALSE(outer.count.requires_grad());
  outer.eval();
  EXPECT_FALSE(inner.is_training());
  EXPECT_ANY_THROW(outer.register_module("inner", inner));
  EXPECT_ANY_THROW(outer.register_buffer("count", inner.count));
}

// Parameters that are created sharded or on one rank have the same values.
TEST(Module, InitialValuesDoNotDependOnTheMesh) {
  std::vector<at::Tensor> expected;
  const auto build = [](const DeviceMesh& mesh, const Placements& placements) {
    manual_seed(mesh, 5);
    const MeshScope scope(mesh, placements);
    auto module = std::make_unique<nn::Embedding>(7, 6, 2);
    auto block = std::make_unique<nn::Block>(nn::Attention::Options{.hidden = 6, .heads = 3, .bias = true},
                                             nn::MLP::Options{.hidden = 6, .ffn = 10});
    std::vector<at::Tensor> values{DTensor(module->weight).full_tensor().detach()};
    for (const at::Tensor& p : block->parameters()) values.push_back(DTensor(p).full_tensor().detach());
    return values;
  };
  on_mesh({1}, [&](const DeviceMesh& mesh) { expected = build(mesh, {Replicate()}); });
  EXPECT_EQ(expected[0][2].abs().sum().item<double>(), 0);  // Row of the padding index.
  EXPECT_GT(expected[0].std().item<double>(), 0.5);
  for (const auto& shape : {test::Shape{3}, test::Shape{2, 2}}) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      const auto values = build(mesh, Placements(shape.size(), Shard(0)));
      for (std::size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(at::equal(values[i], expected[i])) << i;
    });
  }
}

TEST(Module, LinearInitializationMatchesTorch) {
  const nn::Linear linear(16, 2000);
  EXPECT_LE(linear.weight.abs().max().item<double>(), 0.25);
  EXPECT_GT(linear.weight.abs().max().item<double>(), 0.249);
  EXPECT_NEAR(linear.weight.std().item<double>(), 0.25 / std::sqrt(3.0), 2e-3);
  EXPECT_GT(linear.bias.abs().max().item<double>(), 0.24);
  EXPECT_EQ(nn::LayerNorm(3).weight.sum().item<double>(), 3);
}

// Consecutive query heads share a key head.
TEST(Attention, GroupedQueriesEqualRepeatedKeys) {
  nn::Attention grouped({.hidden = 12, .heads = 6, .kv_heads = 2}), full({.hidden = 12, .heads = 6});
  at::NoGradGuard no_grad;
  const auto repeat = [](const at::Tensor& w) { return w.view({2, 1, 2, 12}).expand({2, 3, 2, 12}).reshape({12, 12}); };
  full.q_proj.weight.copy_(grouped.q_proj.weight);
  full.k_proj.weight.copy_(repeat(grouped.k_proj.weight));
  full.v_proj.weight.copy_(repeat(grouped.v_proj.weight));
  full.o_proj.weight.copy_(grouped.o_proj.weight);
  const at::Tensor x = at::randn({2, 5, 12});
  test::expect_close(grouped.forward(x), full.forward(x), "grouped queries", 1e-5);
  const at::Tensor y = full.forward(x), shorter = full.forward(x.narrow(1, 0, 3));
  test::expect_close(y.narrow(1, 0, 3), shorter, "causal", 1e-5);
}

TEST(Module, DistributedBlockMatchesSingleDevice) {
  for (const auto& shape : test::mesh_shapes()) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      test::Draw draw(3);
      nn::Block regular = make_block(), sharded = make_block();
      auto from = regular.named_parameters(), to = sharded.named_parameters();
      for (std::size_t i = 0; i < from.size(); ++i) {
        const at::Tensor value = draw.normal(from[i].second->sizes().vec());
        *from[i].second = value.clone().requires_grad_();
        *to[i].second = value.clone().requires_grad_();
      }
      sharded.distribute(
          mesh, [&](const std::string&, const at::Tensor& t) { return draw.placements(mesh, t.dim(), false); });
      const at::Tensor x = draw.normal({3, 5, 12});
      const at::Tensor expected = regular.forward(x);
      const at::Tensor actual = sharded.forward(distribute_tensor(x, mesh, draw.placements(mesh, 3, false)));
      test::expect_close(actual, expected, "block");
      expected.square().sum().backward();
      actual.square().sum().backward();
      for (std::size_t i = 0; i < from.size(); ++i) {
        test::expect_close(to[i].second->grad(), from[i].second->grad(), to[i].first, 1e-8);
      }
    });
  }
}

// Tied tensors stay tied. Meta tensors get memory for their local part and are initialized afterwards.
TEST(Module, DistributeKeepsTiesAndMaterializesMeta) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto rows = [](const std::string&, const at::Tensor&) { return Placements{Shard(0)}; };
    nn::Embedding words(6, 4);
    nn::Linear head(4, 6, false);
    head.weight = words.weight;
    nn::distribute({{"a", &words.weight}, {"b", &head.weight}}, mesh, rows);
    EXPECT_TRUE(head.weight.is_same(words.weight));
    EXPECT_TRUE(words.weight.requires_grad());
    nn::Linear meta(4, 6, true, at::TensorOptions(at::kMeta));
    meta.distribute(mesh, rows);
    manual_seed(mesh, 1);
    meta.reset();
    EXPECT_EQ(DTensor(meta.weight).to_local().size(0), 3);
    manual_seed(mesh, 1);
    const MeshScope scope(mesh);
    nn::Linear born(4, 6);
    EXPECT_TRUE(at::equal(DTensor(meta.weight).full_tensor(), DTensor(born.weight).full_tensor()));
    EXPECT_TRUE(meta.bias.requires_grad());
  });
}

// The function of each activation, by ATen alone.
at::Tensor activated(nn::Activation kind, const at::Tensor& x) {
  switch (kind) {
    case nn::Activation::relu:
      return at::relu(x);
    case nn::Activation::glu:
      return at::sigmoid(x);
    case nn::Activation::gelu_tanh:
      return at::gelu(x, "tanh");
    case nn::Activation::geglu:
    case nn::Activation::gelu:
      return at::gelu(x);
    default:
      return x * at::sigmoid(x);
  }
}

TEST(MLP, ComputesEachActivationWithAndWithoutAGate) {
  for (int number = 0; number <= static_cast<int>(nn::Activation::gelu_tanh); ++number) {
    for (const bool gated : {false, true}) {
      const auto kind = static_cast<nn::Activation>(number);
      const nn::MLP mlp(
          {.hidden = 6, .ffn = 10, .activation = kind, .bias = true, .tensor = at::kDouble, .gated = gated});
      const at::Tensor x = at::randn({3, 6}, at::kDouble), up = mlp.up_proj(x);
      ASSERT_EQ(mlp.gate_proj != nullptr, gated || is_gated(kind));
      const at::Tensor inner = mlp.gate_proj ? activated(kind, (*mlp.gate_proj)(x)) * up : activated(kind, up);
      test::expect_close(mlp(x), at::linear(inner, mlp.down_proj.weight, mlp.down_proj.bias), std::to_string(number));
    }
  }
}

TEST(Module, LinearWithAdapterEqualsMergedWeight) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    nn::Linear linear(6, 4, true, at::TensorOptions(at::kMeta).dtype(at::kDouble));
    linear.adapt(2, 8);
    EXPECT_EQ(names_of(linear.named_parameters()), (std::vector<std::string>{"weight", "bias", "lora_a", "lora_b"}));
    linear.distribute(mesh, [](const std::string&, const at::Tensor&) { return Placements{Shard(0)}; });
    manual_seed(mesh, 3);
    linear.reset();
    const auto full = [](const at::Tensor& t) { return DTensor(t.detach()).full_tensor(); };
    const at::Tensor x = at::ones({5, 6}, at::kDouble), given = distribute_tensor(x, mesh, {Replicate()});
    const at::Tensor base = at::linear(x, full(linear.weight), full(linear.bias));
    test::expect_close(linear(given), base, "a new adapter adds nothing");
    {
      const at::NoGradGuard no_grad;
      linear.lora_b.fill_(0.5);
    }
    const at::Tensor expected = base + 4 * x.mm(full(linear.lora_a).t()).mm(full(linear.lora_b).t());
    test::expect_close(linear(given), expected, "adapter");
    test::expect_close(at::linear(given, linear.merged(), linear.bias), expected, "merged");
  });
}

}  // namespace
