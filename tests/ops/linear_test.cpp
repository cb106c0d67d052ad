// linear and its derivative are one operator each. First and second derivatives equal those of one device, whichever
// operands need gradients. Tensors that no gradient needs are not saved.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include "dtensor/events.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Tensors = std::vector<at::Tensor>;  // Input, weight and an optional bias.

at::Tensor linear(const Tensors& t) { return at::linear(t[0], t[1], t.size() > 2 ? t[2] : at::Tensor()); }

Tensors wanted_of(const Tensors& operands) {
  Tensors wanted;
  for (const auto& t : operands) {
    if (t.requires_grad()) wanted.push_back(t);
  }
  return wanted;
}

at::Tensor values(Draw& draw, const Shape& sizes, bool complex) {
  const auto real = draw.normal(sizes);
  return complex ? at::complex(real, draw.normal(sizes)) : real;
}

// Result, gradients, and gradients of the squared gradients.
Tensors two_orders(const Tensors& operands, const at::Tensor& upstream) {
  using torch::autograd::grad;
  const auto out = linear(operands);
  const auto wanted = wanted_of(operands);
  Tensors all{out};
  for (const auto& g : grad({out}, wanted, {upstream}, true)) all.push_back(g);
  const auto differentiable = grad({linear(operands)}, wanted, {upstream}, true, true);
  at::Tensor sum;
  for (const auto& g : differentiable) {
    const auto part = at::real(g * g.conj()).sum();
    sum = sum.defined() ? sum + part : part;
  }
  if (!sum.requires_grad()) return all;
  for (const auto& g : grad({sum}, wanted, {}, false, false, true)) {
    if (g.defined()) all.push_back(g);
  }
  return all;
}

RC_GTEST_PROP(Linear, FirstAndSecondDerivativesMatchSingleDevice, ()) {
  const auto shape = *rc::gen::element(Shape{1}, Shape{2}, Shape{3}, Shape{2, 2}, Shape{2, 3});
  Draw draw(*rc::gen::arbitrary<std::uint64_t>());
  const bool complex = draw.coin();
  Shape sizes = draw.sizes(draw.integer(1, 4), 0, 5);
  const auto out = draw.integer(0, 6);
  Tensors regular{values(draw, sizes, complex), values(draw, {out, sizes.back()}, complex)};
  if (draw.coin()) regular.push_back(values(draw, {out}, complex));
  sizes.back() = out;
  const auto upstream = values(draw, sizes, complex);
  const auto seed = static_cast<std::uint64_t>(draw.integer(0, 1 << 20));
  Draw needs(seed);
  for (auto& t : regular) t.requires_grad_(needs.coin());
  regular[static_cast<std::size_t>(needs.integer(0, static_cast<std::int64_t>(regular.size()) - 1))].requires_grad_(
      true);
  const auto expected = two_orders(regular, upstream);
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw positions(seed);
    const auto put = [&](const at::Tensor& t) {
      return at::Tensor(distribute_tensor(t.detach().clone(), mesh, positions.placements(mesh, t.dim(), false)));
    };
    Tensors placed;
    for (const auto& t : regular) placed.push_back(put(t).requires_grad_(t.requires_grad()));
    const auto given = positions.coin() ? put(upstream) : upstream;
    const auto actual = two_orders(placed, given);
    RC_ASSERT(actual.size() == expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const auto full = DTensor(actual[i]).full_tensor();
      RC_ASSERT(full.sizes() == expected[i].sizes());
      RC_ASSERT(at::allclose(full, expected[i], 1e-9, 1e-9));
    }
  });
}

TEST(Linear, ForwardAndBackwardAreOneOperatorEach) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto put = [&](const at::Tensor& t, const Placement& p) {
      return at::Tensor(distribute_tensor(t, mesh, {p})).requires_grad_();
    };
    Draw draw(1);
    const auto x = put(draw.normal({2, 3, 4}), Shard(0)), w = put(draw.normal({6, 4}), Replicate()),
               b = put(draw.normal({6}), Replicate());
    std::vector<std::string> names;
    at::Tensor y;
    {
      const EventListener listener([&](const Event& e) { names.push_back(e.name); }, {Event::Kind::op});
      y = at::linear(x, w, b);
    }
    EXPECT_EQ(names, std::vector<std::string>{"aten::linear"});
    EXPECT_EQ(y.grad_fn()->name(), "LinearBackward0");
    names.clear();
    const auto upstream = at::ones_like(y);
    {
      const EventListener listener([&](const Event& e) { names.push_back(e.name); }, {Event::Kind::op});
      (void)torch::autograd::grad({y}, {x, w, b}, {upstream});
    }
    EXPECT_EQ(std::count(names.begin(), names.end(), "aten::linear_backward"), 1);
    EXPECT_EQ(std::count(names.begin(), names.end(), "aten::mm"), 0);
  });
}

// A row-wise layer: the gradient of the bias is replicated already, and no gradient needs communication.
TEST(Linear, RowwiseGradientsNeedNoCommunication) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    Draw draw(2);
    const auto put = [&](const at::Tensor& t, const Placement& p) {
      return at::Tensor(distribute_tensor(t, mesh, {p}));
    };
    const auto x = put(draw.normal({5, 4}), Shard(1)), w = put(draw.normal({3, 4}), Shard(1)),
               grad = put(draw.normal({5, 3}), Replicate());
    int collectives = 0;
    const EventListener listener([&](const Event&) { ++collectives; }, {Event::Kind::collective});
    const auto [to_x, to_w, to_b] = at::linear_backward(x, grad, w, {true, true, true});
    EXPECT_EQ(collectives, 0);
    EXPECT_EQ(DTensor(to_x).placements(), Placements{Shard(1)});
    EXPECT_EQ(DTensor(to_w).placements(), Placements{Shard(1)});
    EXPECT_EQ(DTensor(to_b).placements(), Placements{Replicate()});
  });
}

TEST(Linear, FrozenWeightSavesNoActivation) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    for (const bool frozen : {false, true}) {
      const auto leaf = at::Tensor(distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)})).requires_grad_();
      const auto w = at::Tensor(distribute_tensor(at::ones({4, 4}), mesh, {Replicate()})).requires_grad_(!frozen);
      at::Tensor x = leaf + 1;
      const c10::weak_intrusive_ptr<c10::TensorImpl> kept(x.getIntrusivePtr());
      const auto storage = DTensor(x).to_local().storage();
      const auto y = at::linear(x, w);
      x.reset();
      EXPECT_EQ(storage.use_count() == 1, frozen);
      (void)torch::autograd::grad({y.sum()}, {leaf});
      EXPECT_EQ(storage.use_count(), 1);
      EXPECT_ANY_THROW((void)torch::autograd::grad({y.sum()}, {leaf})) << "a second time";
    }
  });
}

TEST(Linear, InvalidArgumentsGiveAtenErrors) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto put = [&](const Shape& sizes) {
      return at::Tensor(distribute_tensor(at::ones(sizes), mesh, {Shard(0)})).requires_grad_();
    };
    EXPECT_THROW((void)at::linear(put({4, 3}), put({5, 4})), c10::Error);
    EXPECT_THROW((void)at::linear(put({4, 3}), put({5, 3}), put({4})), c10::Error);
    EXPECT_THROW((void)at::linear(put({4, 3}), put({5, 3}).to(at::kDouble)), c10::Error);
    const auto y = at::linear(put({4, 3}), put({5, 3}), put({1}));
    EXPECT_EQ(y.sizes(), (at::IntArrayRef{4, 5}));
  });
}

}  // namespace
}  // namespace dtensor::test
