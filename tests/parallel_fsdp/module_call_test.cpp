// net(x) is all that a program writes: the hook of fully_shard gives the call its semantics and its dtypes. Expected is
// the same step with ComputeScope or call().
#include <torch/csrc/autograd/custom_function.h>

#include "dtensor/checkpoint_activations.h"
#include "dtensor/dtensor.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

struct Block : nn::Callable<Block> {
  Block() { register_module("up", up), register_module("norm", norm), register_module("down", down); }
  at::Tensor forward(const at::Tensor& x) { return x + down(norm(at::gelu(up(x))).to(x.scalar_type())); }
  nn::Linear up{6, 8}, down{8, 6};
  nn::LayerNorm norm{8};
};

struct Net : nn::Callable<Net> {
  explicit Net(bool again) : again(again) {
    register_module("in", in), register_module("out", out);
    for (int i = 0; i < 3; ++i) register_module("h." + std::to_string(i), blocks[i]);
    Draw draw(5);
    const at::NoGradGuard no_grad;
    for (auto& [name, slot] : named_parameters()) slot->copy_(draw.normal(slot->sizes().vec()).mul_(0.4));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = in(x);
    for (auto& block : blocks) {
      const auto run = [&block](const at::Tensor& t) { return block(t); };
      h = again ? checkpoint(run, h) : run(h);
    }
    return out(h);
  }
  bool again;
  nn::Linear in{4, 6}, out{6, 2};
  Block blocks[3];
};

struct Step {
  std::vector<at::Tensor> values;  // the result and the gradients
  std::int64_t gathers = 0, bytes = 0, reductions = 0, peak = 0;
};

struct Case {
  bool local, again, bf16, lists;
  std::string str() const { return c10::str("local ", local, " again ", again, " bf16 ", bf16, " lists ", lists); }
};

// The second step. `old`: as written without the call operator.
Step step_of(const DeviceMesh& mesh, const Case& c, bool old) {
  Net net(c.again);
  FsdpOptions options;
  if (c.bf16) {
    options.precision = {.param_dtype = at::kBFloat16, .output_dtype = at::kFloat};
    options.precision.param_dtype_of = {{"*norm*", at::kFloat}};
  }
  std::vector<FsdpUnit> units;
  for (auto& block : net.blocks) {
    units.push_back(c.lists ? fully_shard(block.named_parameters(), mesh, options) : fully_shard(block, mesh, options));
  }
  units.push_back(fully_shard(net, mesh, options));
  Draw draw(9 + static_cast<std::uint64_t>(c.local ? mesh.communicator().rank() : 0));
  at::Tensor x = draw.normal({4, 4}).to(at::kFloat);
  if (!c.local) x = distribute_tensor(x, mesh, {Shard(0)});
  const auto run = [&] {
    if (!old) return net(x);
    const at::Tensor narrow = c.bf16 ? x.to(at::kBFloat16) : x;
    if (c.local) return call(net, narrow).to(at::kFloat);
    const ComputeScope scope(net.named_parameters());
    return scope.output(net.forward(narrow));
  };
  Step step;
  for (int i = 0; i < 2; ++i) {
    for (const auto& p : net.parameters()) p.mutable_grad().reset();
    units[0].reset_peaks();
    const auto before = units[0].stats();
    const CommDebugMode comms;
    const at::Tensor y = run();
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    EXPECT_EQ(is_dtensor(y), !c.local);
    y.square().mean().backward();
    const auto after = units[0].stats();
    step = {{y.detach()},
            after.all_gathers - before.all_gathers,
            comms.total("all_gather").bytes,
            comms.total("reduce_scatter").calls,
            after.peak_gathered_bytes};
    EXPECT_EQ(after.gathered_bytes, 0);
  }
  for (const auto& p : net.parameters()) step.values.push_back(DTensor(p.grad()).to_local());
  return step;
}

TEST(FsdpModuleCall, EqualsComputeScopeAndCall) {
  for (int k = 0; k < 16; ++k) {
    const Case c{(k & 1) != 0, (k & 2) != 0, (k & 4) != 0, (k & 8) != 0};
    if (c.local && c.lists) continue;  // A list of tensors has no call, so its parameters stay DTensors.
    SCOPED_TRACE(c.str());
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const Step expected = step_of(mesh, c, true), actual = step_of(mesh, c, false);
      ASSERT_EQ(actual.values.size(), expected.values.size());
      for (std::size_t i = 0; i < actual.values.size(); ++i) {
        EXPECT_EQ(actual.values[i].scalar_type(), at::kFloat);
        const auto local = [](const at::Tensor& t) { return is_dtensor(t) ? DTensor(t).to_local() : t; };
        EXPECT_TRUE(at::equal(local(actual.values[i]), local(expected.values[i]))) << c.str() << " value " << i;
      }
      EXPECT_EQ(actual.gathers, expected.gathers) << c.str();
      EXPECT_EQ(actual.bytes, expected.bytes) << c.str();
      EXPECT_EQ(actual.reductions, expected.reductions) << c.str();
      EXPECT_EQ(actual.peak, expected.peak) << c.str();
    });
  }
}

// The unit serves its gathered copy in param_dtype only, so the peak shows that the call computed in it.
TEST(FsdpModuleCall, GathersInParamDtype) {
  for (const bool local : {false, true}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const auto bytes = [&](at::ScalarType dtype) {
        nn::Linear layer(16, 16, false);
        const auto unit = fully_shard(layer, mesh, {.precision = {.param_dtype = dtype}});
        const at::Tensor x = at::ones({4, 16});
        const auto y = local ? layer(x) : layer(at::Tensor(distribute_tensor(x, mesh, {Shard(0)})));
        EXPECT_EQ(y.scalar_type(), dtype);
        EXPECT_EQ(x.scalar_type(), at::kFloat);
        return unit.stats().peak_gathered_bytes;
      };
      EXPECT_EQ(bytes(at::kBFloat16), 16 * 16 * 2);
      EXPECT_EQ(bytes(at::kFloat), 16 * 16 * 4);
    });
  }
}

TEST(FsdpModuleCall, CastForwardInputsCanBeSwitchedOff) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    nn::Linear layer(4, 4);
    fully_shard(layer, mesh, {.precision = {.param_dtype = at::kBFloat16, .cast_forward_inputs = false}});
    EXPECT_ANY_THROW(layer(at::ones({2, 4})));  // float times bfloat16
    EXPECT_EQ(layer(at::ones({2, 4}).to(at::kBFloat16)).scalar_type(), at::kBFloat16);
  });
}

// Its forward() runs without grad mode.
struct OwnLinear : torch::autograd::Function<OwnLinear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return at::linear(x, weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0].mm(saved[1]), gradients[0].t().mm(saved[0])};
  }
};

struct OwnBlock : nn::Callable<OwnBlock> {
  OwnBlock() { register_module("norm", norm), register_module("linear", linear); }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = norm(x);
    return own ? OwnLinear::apply(h, linear.weight) : at::linear(h, linear.weight);
  }
  bool own = false;
  nn::LayerNorm norm{8};
  nn::Linear linear{8, 8, false};
};

struct OwnNet : nn::Callable<OwnNet> {
  explicit OwnNet(bool own) {
    for (int i = 0; i < 4; ++i) register_module(std::to_string(i), blocks[i]), blocks[i].own = own;
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  OwnBlock blocks[4];
};

TEST(FsdpModuleCall, CustomFunctionsArePartOfForward) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::ones({4, 8}), mesh, {Shard(0)});
    const auto counts = [&](bool own, bool evaluates) {
      OwnNet net(own);
      std::vector<FsdpUnit> units;
      for (auto& block : net.blocks) units.push_back(fully_shard(block, mesh));
      fully_shard(net, mesh);
      std::vector<std::int64_t> all;
      for (int step = 0; step < 3; ++step) {
        const auto before = units[0].stats().all_gathers;
        units[0].reset_peaks();
        if (evaluates) {
          const at::NoGradGuard no_grad;
          net(x);
        }
        net(x).sum().backward();
        all.push_back(units[0].stats().all_gathers - before);
        all.push_back(units[0].stats().peak_gathered_bytes);
      }
      EXPECT_LE(all.back(), 2 * units[0].gathered_bytes());
      return all;
    };
    for (const bool evaluates : {false, true}) EXPECT_EQ(counts(true, evaluates), counts(false, evaluates));
  });
}

}  // namespace
}  // namespace dtensor::test
