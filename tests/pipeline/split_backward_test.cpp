// Both halves of a split backward together run the operators of the full backward, each once.
#include "pipeline/split_backward.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/events.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using pipeline::SplitBackward;
using pipeline::Tensors;
using test::Draw;

constexpr std::int64_t kSize = 4;

// A random graph of products and sums: weights are used several times, some results are unused, some depend on no
// input.
struct Graph {
  Tensors inputs, weights, outputs;

  Graph(std::uint64_t seed, const DeviceMesh& mesh) {
    Draw draw(seed);
    const auto leaf = [&] {
      return distribute_tensor(draw.normal({kSize, kSize}), mesh, draw.placements(mesh, 2, false)).requires_grad_();
    };
    for (int i = 0; i < 2; ++i) inputs.push_back(leaf());
    for (int i = 0; i < 4; ++i) weights.push_back(leaf());
    Tensors values = inputs;
    values.push_back(weights[3] * 2);  // Depends on no input.
    const auto pick = [&](const Tensors& from) {
      return from[static_cast<std::size_t>(draw.integer(0, static_cast<std::int64_t>(from.size()) - 1))];
    };
    for (int i = 0; i < 6; ++i) {
      const at::Tensor x = pick(values), w = pick(weights);
      values.push_back(draw.coin() ? at::mm(x, w) : at::tanh(x) + pick(values) * w);
    }
    outputs = {values.back(), pick(values) * 1, values[2]};
  }
};

Tensors output_gradients(std::uint64_t seed) {
  Draw draw(seed + 1);
  return {draw.normal({kSize, kSize}), draw.normal({kSize, kSize}), draw.normal({kSize, kSize})};
}

Tensors placed(const Tensors& regular, const Tensors& like) {
  Tensors result;
  for (std::size_t i = 0; i < regular.size(); ++i) {
    result.push_back(distribute_tensor(regular[i], DTensor(like[i]).mesh(), DTensor(like[i]).placements()));
  }
  return result;
}

template <class F>
int products_of(const F& run) {
  int count = 0;
  const EventListener listener([&](const Event& e) { count += e.name.find("mm") != std::string::npos; },
                               {Event::Kind::op});
  run();
  return count;
}

TEST(SplitBackward, HalvesMatchFullBackward) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    test::on_mesh({2}, [&](const DeviceMesh& mesh) {
      Graph full(seed, mesh), halves(seed, mesh);
      const Tensors gradients = output_gradients(seed);
      const int all = products_of([&] { torch::autograd::backward(full.outputs, placed(gradients, full.outputs)); });
      std::vector<int> calls(halves.weights.size());
      for (std::size_t i = 0; i < halves.weights.size(); ++i) {
        halves.weights[i].register_hook([&calls, i](const at::Tensor&) { ++calls[i]; });
      }
      SplitBackward split;
      Tensors found;
      const auto first = [&] {
        found = split.backward_input(halves.outputs, placed(gradients, halves.outputs), halves.inputs);
      };
      const int before = products_of(first);
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i].defined(), full.inputs[i].grad().defined()) << seed;
        if (found[i].defined())
          test::expect_close(found[i], DTensor(full.inputs[i].grad()).full_tensor(), c10::str("input of ", seed));
      }
      for (const at::Tensor& weight : halves.weights) EXPECT_FALSE(weight.grad().defined()) << seed;
      const int after = products_of([&] { split.backward_weight(); });
      EXPECT_EQ(before + after, all) << seed;
      for (std::size_t i = 0; i < halves.weights.size(); ++i) {
        const at::Tensor expected = full.weights[i].grad();
        ASSERT_EQ(halves.weights[i].grad().defined(), expected.defined()) << seed << " weight " << i;
        EXPECT_EQ(calls[i], expected.defined() ? 1 : 0) << seed << " weight " << i;
        if (expected.defined())
          test::expect_close(halves.weights[i].grad(), DTensor(expected).full_tensor(), c10::str("weight of ", seed));
      }
    });
  }
}

// Hooks on tensors between weights and inputs change the gradients of both, and run as often as in a full backward.
TEST(SplitBackward, HooksOfIntermediateTensorsRunOnce) {
  const auto gradients = [](bool splits) {
    Draw draw(3);
    const auto leaf = [&] { return draw.normal({kSize, kSize}).requires_grad_(); };
    const at::Tensor x = leaf(), a = leaf(), b = leaf();
    const at::Tensor h = at::mm(x, a);
    int calls = 0;
    h.register_hook([&](const at::Tensor& g) { return ++calls, g * 2; });
    h.retain_grad();
    const at::Tensor y = at::mm(h, b), gradient = draw.normal({kSize, kSize});
    if (splits) {
      SplitBackward split;
      const at::Tensor of_x = split.backward_input({y}, {gradient}, {x})[0];
      split.backward_weight();
      x.mutable_grad() = of_x;
    } else {
      y.backward(gradient);
    }
    EXPECT_EQ(calls, 1) << splits;
    return Tensors{x.grad(), a.grad(), b.grad(), h.grad()};
  };
  const Tensors full = gradients(false), halves = gradients(true);
  for (std::size_t i = 0; i < full.size(); ++i) test::expect_close(halves[i], full[i], c10::str("gradient ", i));
}

// Hooks of the pass are removed if it throws, so another backward of the graph is possible.
TEST(SplitBackward, FailedPassLeavesNoHooks) {
  const at::Tensor x = at::ones({2, 2}).requires_grad_(), w = at::ones({2, 2}).requires_grad_();
  const at::Tensor y = at::mm(x, w), z = y.sin();
  y.register_hook([](const at::Tensor& g) -> at::Tensor { TORCH_CHECK(false, "no ", g.sizes()); });
  EXPECT_ANY_THROW(pipeline::SplitBackward().backward_input({z}, {at::ones({2, 2})}, {x}));
  EXPECT_TRUE(z.grad_fn()->pre_hooks().empty());
  EXPECT_TRUE(y.grad_fn()->pre_hooks().empty());
}

TEST(SplitBackward, OneProductPerGradient) {
  test::on_mesh({1}, [&](const DeviceMesh& mesh) {
    const auto leaf = [&] { return distribute_tensor(at::ones({kSize, kSize}), mesh, {Replicate()}).requires_grad_(); };
    const at::Tensor x = leaf(), a = leaf(), b = leaf();
    const at::Tensor y = at::mm(at::mm(x, a), b);
    SplitBackward split;
    EXPECT_EQ(products_of([&] { split.backward_input({y}, {at::ones_like(y)}, {x}); }), 2);
    EXPECT_EQ(products_of([&] { split.backward_weight(); }), 2);
  });
}

}  // namespace
}  // namespace dtensor
