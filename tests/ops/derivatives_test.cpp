// Derivatives other than one backward pass: forward mode, and double backward with an upstream gradient that is a
// regular tensor. They equal those of one device.
#include <gtest/gtest.h>

#include <torch/csrc/autograd/autograd.h>

#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Function = std::function<at::Tensor(const at::Tensor&)>;

struct Dual {
  at::Tensor value, tangent;
};

// The forward-mode level is global to the process, so thread ranks share it.
constexpr std::int64_t kLevel = 0;

Dual forward_mode(const Function& f, const at::Tensor& x, const at::Tensor& tangent) {
  auto [value, result] = at::_unpack_dual(f(at::_make_dual(x, tangent, kLevel)), kLevel);
  return {value, result};
}

TEST(ForwardMode, ValuesAndTangentsMatchSingleDevice) {
  const std::vector<std::pair<const char*, Function>> functions = {
      {"sin", [](auto& x) { return x.sin(); }},
      {"mul", [](auto& x) { return x * x + 2 * x; }},
      {"mm", [](auto& x) { return x.t().mm(x); }},
      {"linear", [](auto& x) { return at::linear(x, x * 2); }},
      {"sum", [](auto& x) { return x.sum(0); }},
      {"mean", [](auto& x) { return x.mean(); }},
      {"softmax", [](auto& x) { return x.softmax(-1); }},
      {"variance", [](auto& x) { return x.var(1); }},
      {"relu", [](auto& x) { return x.relu(); }},
      {"view",
       [](auto& x) {
         return x.reshape({4, 3, 2}).transpose(0, 1) * 3;
       }},
      {"cat",
       [](auto& x) {
         return at::cat({x, x.exp()}, 0);
       }},
  };
  Draw draw(3);
  const at::Tensor x = draw.normal({4, 6}), tangent = draw.normal({4, 6});
  ASSERT_EQ(torch::autograd::forward_ad::enter_dual_level(), static_cast<std::uint64_t>(kLevel));
  for (const Placements& placements : {Placements{Shard(0)}, {Shard(1)}, {Replicate()}}) {
    on_mesh({3}, [&](const DeviceMesh& mesh) {
      const auto place = [&](const at::Tensor& t) {
        return at::Tensor(distribute_tensor(t.clone(), mesh, placements));
      };
      for (const auto& [name, f] : functions) {
        const Dual expected = forward_mode(f, x, tangent), actual = forward_mode(f, place(x), place(tangent));
        expect_close(actual.value, expected.value, name);
        expect_close(actual.tangent, expected.tangent, std::string(name) + " tangent");
      }
    });
  }
  torch::autograd::forward_ad::exit_dual_level(kLevel);
}

// The gradient of the squared gradient, with an upstream gradient that is a regular tensor.
at::Tensor second_order(const Function& f, const at::Tensor& given) {
  const at::Tensor x = given.detach().requires_grad_();
  const at::Tensor y = f(x);
  const auto upstream = at::arange(y.numel(), at::kDouble).reshape(y.sizes()).cos();
  const auto grad = torch::autograd::grad({y}, {x}, {upstream}, true, true)[0];
  return torch::autograd::grad({grad.square().sum()}, {x})[0];
}

// unbind of a split dimension moves the split to another dimension, and the gradient back.
TEST(Backward, GradientOfRedistributedOperandHasItsPlacements) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Draw draw(1);
    const at::Tensor x = draw.normal({4, 6});
    for (const Placement& placement : {Shard(1), ZigzagShard(1)}) {
      const auto leaf = at::Tensor(distribute_tensor(x, mesh, {placement})).requires_grad_();
      const at::Tensor doubled = leaf * 2;
      const auto columns = doubled.unbind(1);
      ASSERT_EQ(DTensor(columns[0]).placements(), Placements{Shard(0)});
      Placements found;
      doubled.register_hook([&](const at::Tensor& gradient) { found = DTensor(gradient).placements(); });
      at::stack(columns).square().sum().backward();
      EXPECT_EQ(found, Placements{placement});
      expect_close(leaf.grad(), 8 * x, "gradient");
    }
  });
}

TEST(DoubleBackward, NormsAcceptRegularUpstreamGradient) {
  Draw draw(5);
  const at::Tensor x = draw.normal({4, 6, 3}), weight = draw.normal({3}), channels = draw.normal({6});
  for (const std::int64_t dim : {0, 1, 2}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const at::Tensor mine = distribute_tensor(x.clone(), mesh, {Shard(dim)});
      const Function layer = [&](const at::Tensor& t) { return at::layer_norm(t, {3}, weight, weight); };
      const Function batch = [&](const at::Tensor& t) {
        return at::batch_norm(t, channels, channels, {}, {}, true, 0.1, 1e-5, false);
      };
      expect_close(second_order(layer, mine), second_order(layer, x), "layer norm", 1e-7);
      expect_close(second_order(batch, mine), second_order(batch, x), "batch norm", 1e-7);
    });
  }
}

TEST(Indices, TensorSplitAcceptsDTensorIndices) {
  const at::Tensor x = at::arange(24, at::kDouble).reshape({8, 3}),
                   positions = at::tensor(std::vector<std::int64_t>{1, 5});
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::Tensor mine = distribute_tensor(x, mesh, {Shard(0)});
    const at::Tensor indices = distribute_tensor(positions, mesh, {Shard(0)});
    for (const at::Tensor& data : {mine, x}) {
      const auto parts = at::tensor_split(data, indices), expected = at::tensor_split(x, positions);
      ASSERT_EQ(parts.size(), expected.size());
      for (std::size_t i = 0; i < parts.size(); ++i) expect_close(parts[i], expected[i], "part");
    }
    EXPECT_EQ(
        at::tensor_split(mine, at::Tensor(distribute_tensor(at::scalar_tensor(3, at::kLong), mesh, {Replicate()})))
            .size(),
        3u);
  });
}

TEST(Indices, CopyIntoScalarTensor) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto full = [&](const at::Tensor& t) { return at::Tensor(distribute_tensor(t, mesh, {Replicate()})); };
    const at::Tensor number = at::tensor(2.0, at::kDouble), zero = at::tensor(std::vector<std::int64_t>{0});
    const at::Tensor source = at::tensor(7.0, at::kDouble);
    expect_close(at::index_copy(full(number), 0, full(zero), full(source)), source, "0-d");
    expect_close(at::index_copy(full(number), 0, full(zero.squeeze()), full(source)), source, "0-d index");
  });
}

}  // namespace
}  // namespace dtensor::test
