// Small single-device programs, run sharded with random placements: values and gradients equal those of regular
// tensors.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Program = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

struct Case {
  const char* name;
  std::function<std::vector<Shape>(Draw&)> shapes;
  Program run;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"linear gelu",
       [](Draw& d) {
         auto s = d.sizes(3, 1);
         return std::vector<Shape>{{s[0], s[1]}, {s[1], s[2]}};
       },
       [](const auto& t) { return at::gelu(at::matmul(t[0], t[1])); }},
      {"residual",
       [](Draw& d) {
         auto s = d.sizes(2, 1);
         return std::vector<Shape>{s, {s[1], s[1]}};
       },
       [](const auto& t) { return t[0] + at::mm(at::tanh(t[0]), t[1]); }},
      {"broadcast",
       [](Draw& d) {
         auto s = d.sizes(3);
         return std::vector<Shape>{s, {s[1], 1}, {s[2]}};
       },
       [](const auto& t) { return (t[0] * t[1] - t[2]).sigmoid(); }},
      {"softmax", [](Draw& d) { return std::vector<Shape>{d.sizes(2, 1)}; },
       [](const auto& t) { return at::softmax(t[0], -1) * at::log_softmax(t[0], 0); }},
      {"layer norm",
       [](Draw& d) {
         auto s = d.sizes(3, 1);
         return std::vector<Shape>{s, {s[2]}, {s[2]}};
       },
       [](const auto& t) { return at::layer_norm(t[0], {t[0].size(2)}, t[1], t[2]); }},
      {"heads",
       [](Draw& d) {
         auto b = d.integer(1, 4), s = d.integer(1, 5), h = d.integer(1, 4);
         return std::vector<Shape>{{b, s, h * 2}};
       },
       [](const auto& t) {
         const auto b = t[0].size(0), s = t[0].size(1);
         auto x = t[0].view({b, s, -1, 2}).transpose(1, 2);
         return at::matmul(x, x.transpose(-1, -2)).transpose(1, 2).reshape({b, s, -1});
       }},
      {"reductions", [](Draw& d) { return std::vector<Shape>{d.sizes(3, 1)}; },
       [](const auto& t) {
         return t[0].sum(at::IntArrayRef({0, 2})) + t[0].mean(1).sum() + t[0].amax(0).sum();
       }},
      {"slices", [](Draw& d) { return std::vector<Shape>{d.sizes(2, 2)}; },
       [](const auto& t) {
         return at::cat({t[0].slice(0, 1), t[0].select(0, 0).unsqueeze(0) * 2}, 0);
       }},
      {"transposes", [](Draw& d) { return std::vector<Shape>{d.sizes(3)}; },
       [](const auto& t) {
         return t[0].permute({2, 0, 1}).contiguous().flatten(0, 1) * 3;
       }},
      {"moved then flattened", [](Draw& d) { return std::vector<Shape>{d.sizes(3, 1)}; },
       [](const auto& t) {
         // Softmax needs an unsharded dimension, so its operand was gathered. The reshape after it is a view of the
         // global tensor.
         const auto s = t[0].sizes();
         return at::softmax(t[0].transpose(0, 1), 0).transpose(0, 1).reshape({s[0], s[1] * s[2]}) * 2;
       }},
      {"linear 3d",
       [](Draw& d) {
         auto s = d.sizes(4, 1);
         return std::vector<Shape>{{s[0], s[1], s[2]}, {s[3], s[2]}, {s[3]}};
       },
       [](const auto& t) { return at::linear(t[0], t[1], t[2]); }},
  };
  return all;
}

std::vector<at::Tensor> with_grad(std::vector<at::Tensor> tensors) {
  for (auto& t : tensors) t.requires_grad_();
  return tensors;
}

void check_program(const Case& c, const Shape& mesh_shape, std::uint64_t seed) {
  Draw draw(seed);
  std::vector<at::Tensor> regular;
  for (const auto& shape : c.shapes(draw)) regular.push_back(draw.normal(shape));
  const auto reference = with_grad(regular);
  const auto expected = c.run(reference);
  const auto weight = draw.normal(expected.sizes().vec());
  (expected * weight).sum().backward();
  on_mesh(mesh_shape, [&](const DeviceMesh& mesh) {
    Draw mine(seed + 1);
    std::vector<at::Tensor> inputs;
    std::string what = c10::str(c.name, " seed ", seed, " mesh ", at::IntArrayRef(mesh_shape));
    for (const auto& t : regular) {
      inputs.push_back(distribute_tensor(t.detach(), mesh, mine.placements_of(mesh, t.sizes())));
      what += " " + DTensor(inputs.back()).spec_str();
    }
    inputs = with_grad(inputs);
    const auto actual = c.run(inputs);
    expect_close(actual.detach(), expected.detach(), what);
    (actual * distribute_tensor(weight, mesh, mine.placements(mesh, weight.dim(), false))).sum().backward();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      expect_close(inputs[i].grad(), reference[i].grad(), c10::str(what, " grad ", i));
    }
  });
}

class Programs : public testing::TestWithParam<std::size_t> {};

TEST_P(Programs, MatchSingleDevice) {
  const auto& c = cases()[GetParam()];
  for (const auto& mesh_shape : mesh_shapes()) {
    EXPECT_TRUE(rc::check(c.name, [&] { check_program(c, mesh_shape, *rc::gen::inRange<std::uint64_t>(0, 1 << 20)); }));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Programs, testing::Range<std::size_t>(0, cases().size()), [](const auto& info) {
  std::string name = cases()[info.param].name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

}  // namespace
}  // namespace dtensor::test
