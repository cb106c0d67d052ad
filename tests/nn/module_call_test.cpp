// What a call of a module adds to forward(): its name, its points and its hooks, for any inputs and results.
#include "dtensor/dtensor.h"
#include "dtensor/nn/decoder.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Log = std::vector<std::string>;

// Writes down the module path that forward() sees.
struct Leaf : nn::Callable<Leaf> {
  explicit Leaf(Log& log) : log(log) {}
  at::Tensor forward(const at::Tensor& x) const {
    log.push_back("forward " + ModuleScope::path());
    return x + 1;
  }
  Log& log;
};

struct Outer : nn::Callable<Outer> {
  explicit Outer(Log& log) : leaf(log) { register_module("leaf", leaf); }
  at::Tensor forward(const at::Tensor& x) { return leaf(x); }
  Leaf leaf;
};

nn::Module::CallHook logs(Log& log, const std::string& name) {
  return [&log, name](const nn::TensorSlots& inputs) {
    log.push_back(name + " enters " + std::to_string(inputs.size()));
    const auto end =
        std::make_shared<std::shared_ptr<void>>(nullptr, [&log, name](void*) { log.push_back(name + " ends"); });
    return [&log, name, end](const nn::TensorSlots& outputs) {
      log.push_back(name + " leaves " + std::to_string(outputs.size()));
    };
  };
}

TEST(ModuleCall, EntersPointsAndHooksInOrderAndLeavesInReverse) {
  Log log;
  Outer net(log);
  for (const char* point : {"in", "out"}) {
    net.leaf.set_constraint(point, [&log, point](const at::Tensor& x) {
      log.push_back(point);
      return x * 2;
    });
  }
  net.leaf.register_call_hook(logs(log, "a"));
  net.leaf.register_call_hook(logs(log, "b"));
  EXPECT_EQ(net(at::ones({})).item<double>(), (1 * 2 + 1) * 2);
  const Log expected = {"in",         "a enters 1", "b enters 1", "forward leaf", "out",
                        "b leaves 1", "b ends",     "a leaves 1", "a ends"};
  EXPECT_EQ(log, expected);
  EXPECT_EQ(ModuleScope::path(), "");
}

TEST(ModuleCall, HooksReplaceInputsAndResults) {
  Log log;
  const Leaf leaf(log);
  Leaf hooked(log);
  hooked.register_call_hook([](const nn::TensorSlots& inputs) {
    *inputs[0] = inputs[0]->to(at::kDouble);
    return [](const nn::TensorSlots& outputs) { *outputs[0] = *outputs[0] * 10; };
  });
  const at::Tensor x = at::ones({2});
  EXPECT_EQ(leaf(x).scalar_type(), at::kFloat);
  EXPECT_EQ(hooked(x).scalar_type(), at::kDouble);
  EXPECT_EQ(hooked(x).sum().item<double>(), 40);
  EXPECT_EQ(x.scalar_type(), at::kFloat);  // The caller's tensor is not replaced.
}

TEST(ModuleCall, AnExceptionEndsHooksWithoutLeavingThem) {
  struct Throws : nn::Callable<Throws> {
    void forward() const { throw std::runtime_error("in forward"); }
  } module;
  Log log;
  module.register_call_hook(logs(log, "a"));
  module.register_call_hook(logs(log, "b"));
  EXPECT_THROW(module(), std::runtime_error);
  EXPECT_EQ(log, (Log{"a enters 0", "b enters 0", "b ends", "a ends"}));
  EXPECT_EQ(ModuleScope::path(), "");
}

// A struct of results, and forward() with a move-only input and an output parameter.
struct Pair {
  at::Tensor first;
  at::Tensor second;
  nn::TensorSlots tensors() { return {&first, &second}; }
};
struct Kinds : nn::Callable<Kinds> {
  at::Tensor forward(const at::Tensor& x, int factor) { return x * factor; }
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& x) { return {x.rbegin(), x.rend()}; }
  std::pair<at::Tensor, std::optional<at::Tensor>> forward(const std::optional<at::Tensor>& x) {
    return {x.value_or(at::zeros({})), x};
  }
  Pair forward(const Pair& x) { return {x.first, {}}; }
  std::tuple<at::Tensor, int> forward(std::unique_ptr<int> number) { return {at::ones({}) * *number, *number}; }
  void forward(const DTensor& x, std::string& to) { to = to_string(x.placements()); }
};

// Each call is made with a constraint at "in" and "out" that doubles, and without.
TEST(ModuleCall, AcceptsInputsAndResultsOfAnyType) {
  std::vector<std::int64_t> seen;
  for (const bool constrained : {false, true}) {
    Kinds module;
    if (constrained) {
      for (const char* point : {"in", "out"}) module.set_constraint(point, [](const at::Tensor& x) { return x * 2; });
    }
    module.register_call_hook([&seen](const nn::TensorSlots& inputs) {
      seen.push_back(static_cast<std::int64_t>(inputs.size()));
      return [&seen](const nn::TensorSlots& outputs) { seen.push_back(static_cast<std::int64_t>(outputs.size())); };
    });
    const double factor = constrained ? 4 : 1;
    const at::Tensor one = at::ones({});
    EXPECT_EQ(module(one, 3).item<double>(), 3 * factor);
    EXPECT_EQ(module(std::vector{one, one * 5})[1].item<double>(), constrained ? 2 : 1);  // "in" is the first tensor.
    EXPECT_EQ(module(std::optional<at::Tensor>(one)).first.item<double>(), factor);
    EXPECT_EQ(module(std::optional<at::Tensor>()).first.item<double>(), constrained ? 2 * 0 : 0);
    EXPECT_EQ(module(Pair{one, one}).first.item<double>(), factor);
    EXPECT_EQ(std::get<1>(module(std::make_unique<int>(7))), 7);
  }
  const std::vector<std::int64_t> once = {1, 1, 2, 2, 1, 2, 0, 1, 2, 1, 0, 1};
  std::vector<std::int64_t> twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_EQ(seen, twice);
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Kinds module;
    std::string text;
    module(DTensor(zeros({4}, mesh, {Shard(0)})), text);
    EXPECT_EQ(text, "[S(0)]");
  });
}

// A class without the call operator is called by call(), and as an expert.
TEST(ModuleCall, CallServesModulesThatDefineForwardOnly) {
  struct ForwardOnly : nn::Module {
    at::Tensor forward(const at::Tensor& x) { return x + 1; }
  } module;
  Log log;
  module.register_call_hook(logs(log, "a"));
  EXPECT_EQ(call(module, at::ones({})).item<double>(), 2);
  EXPECT_EQ(log, (Log{"a enters 1", "a leaves 1", "a ends"}));
}

// forward() of a library's layer has the name and the points of a call, and no hooks.
TEST(ModuleCall, ForwardOfALayerIsACallWithoutHooks) {
  nn::MLP::Options mlp{.hidden = 4, .ffn = 8};
  nn::Block block({.hidden = 4, .heads = 2}, mlp);
  Log log;
  for (const auto& [name, module] : block.named_modules()) {
    module->set_constraint("in", [&log, name = name](const at::Tensor& x) {
      log.push_back(name + (ModuleScope::path() == name ? "" : " at " + ModuleScope::path()));
      return x;
    });
  }
  block.register_call_hook(logs(log, "hook"));
  const at::Tensor x = at::randn({1, 2, 4});
  const at::Tensor direct = block.forward(x);
  const Log points = log;
  EXPECT_EQ(points, (Log{"", "ln1", "attn", "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj", "ln2", "mlp",
                         "mlp.up_proj", "mlp.down_proj"}));
  log.clear();
  EXPECT_TRUE(at::equal(block(x), direct));
  EXPECT_EQ(log.size(), points.size() + 3);
  EXPECT_EQ(log[1], "hook enters 1");
}

}  // namespace
}  // namespace dtensor::test
