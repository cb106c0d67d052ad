// List operators redistribute their entries together: one collective for each kind, mesh and dtype.
// Results are bit-equal to those of separate redistributions.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "dtensor/debug.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Tensors = std::vector<at::Tensor>;

// A Partial whose local values differ between ranks.
at::Tensor shares(Draw& draw, const Shape& sizes, at::ScalarType dtype, const DeviceMesh& mesh) {
  const auto mine = draw.normal(sizes, dtype) * (1 + mesh.communicator().rank());
  return DTensor::from_local(mine, mesh, Placements(static_cast<std::size_t>(mesh.ndim()), Partial()));
}

Tensors partials(Draw& draw, int count, const DeviceMesh& mesh) {
  Tensors all;
  for (int i = 0; i < count; ++i) {
    all.push_back(shares(draw, draw.sizes(i % 3, 0, 5), i % 2 == 0 ? at::kFloat : at::kDouble, mesh));
  }
  return all;
}

at::Tensor local(const at::Tensor& t) { return is_dtensor(t) ? DTensor(t).to_local() : t; }

TEST(ListMoves, TwentyPartialsAreOneAllReducePerDtype) {
  for (const Shape& shape : {Shape{2}, Shape{3}, Shape{2, 2}}) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      Draw draw(1);
      const auto a = partials(draw, 20, mesh), b = at::_foreach_neg(a);
      const auto weights = [&] {
        Tensors all;
        for (const auto& t : a) {
          all.push_back(distribute_tensor(at::ones(t.sizes(), t.options().device(at::kCPU)), mesh,
                                          Placements(static_cast<std::size_t>(mesh.ndim()))));
        }
        return all;
      }();
      const auto counted = [](const auto& run) {
        const CommDebugMode mode;
        run();
        EXPECT_EQ(mode.total().calls, mode.total("all_reduce").calls) << mode.table();
        return mode.total("all_reduce").calls;
      };
      EXPECT_EQ(counted([&] { at::_foreach_mul(a, b); }), 2);
      EXPECT_EQ(counted([&] { at::_foreach_add_(weights, a); }), 2);
      EXPECT_EQ(counted([&] { at::_foreach_sqrt(a); }), 2);
      EXPECT_EQ(counted([&] { at::_foreach_add(a, b); }), 0);  // Stays Partial.
    });
  }
}

// A list redistributed to any placements has the bits, strides and gradients of separate redistributions, in no more
// collectives.
RC_GTEST_PROP(ListMoves, ListRedistributionMatchesSeparateRedistributions, ()) {
  const auto shape = *rc::gen::element(Shape{2}, Shape{3}, Shape{2, 2});
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    std::vector<DTensor> together, alone;
    std::vector<Placements> goals;
    for (auto i = draw.integer(0, 6); i > 0; --i) {
      const auto type = *std::next(std::begin({at::kFloat, at::kDouble, at::kBFloat16}), draw.integer(0, 2));
      auto values = draw.normal(draw.sizes(2, 0, 5), type);
      if (draw.coin()) values = values.t();
      const auto from = draw.placements_of(mesh, values.sizes());
      for (auto* list : {&together, &alone}) {
        list->push_back(DTensor(at::Tensor(distribute_tensor(values, mesh, from)).requires_grad_()));
      }
      goals.push_back(draw.placements_of(mesh, values.sizes()));
    }
    CommDebugMode counts;
    const auto got = redistribute(together, goals);
    const auto calls = counts.total().calls;
    for (std::size_t i = 0; i < alone.size(); ++i) {
      const auto one = alone[i].redistribute(goals[i]);
      EXPECT_EQ(got[i].placements(), one.placements());
      EXPECT_EQ(got[i].strides(), one.strides());
      EXPECT_TRUE(at::equal(got[i].to_local(), one.to_local())) << got[i].spec_str();
      at::Tensor(got[i]).sum().backward();
      at::Tensor(one).sum().backward();
      EXPECT_TRUE(at::equal(DTensor(together[i].grad()).to_local(), DTensor(alone[i].grad()).to_local()));
    }
    EXPECT_LE(calls, counts.total().calls - calls);
  });
  RC_ASSERT(!testing::Test::HasFailure());
}

// One collective for each mesh; a regular tensor causes none.
TEST(ListMoves, OneCollectivePerMesh) {
  run_local(4, [](Communicator world) {
    const auto square = init_device_mesh(world, at::kCPU, {2, 2}), line = square.flatten();
    Draw draw(2);
    Tensors list;
    for (int i = 0; i < 12; ++i) {
      list.push_back(i % 3 == 2 ? at::ones({3}) : shares(draw, {3, 2}, at::kFloat, i % 3 == 0 ? square : line));
    }
    const CommDebugMode mode;
    const auto roots = at::_foreach_exp(list);
    EXPECT_EQ(mode.total("all_reduce").calls, 2) << mode.table();
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (is_dtensor(list[i])) expect_close(roots[i], DTensor(list[i]).full_tensor().exp(), "exp", 0);
    }
  });
}

struct ListOperator {
  const char* name;
  std::function<Tensors(const Tensors&, const Tensors&)> run;  // Takes any number of pairs.
};

const std::vector<ListOperator>& operators() {
  static const std::vector<ListOperator> all{
      {"add", [](auto& a, auto& b) { return at::_foreach_add(a, b, 2); }},
      {"mul", [](auto& a, auto& b) { return at::_foreach_mul(a, b); }},
      {"maximum", [](auto& a, auto& b) { return at::_foreach_maximum(a, b); }},
      {"addcdiv", [](auto& a, auto& b) { return at::_foreach_addcdiv(a, b, at::_foreach_exp(a), 0.5); }},
      {"exp", [](auto& a, auto&) { return at::_foreach_exp(a); }},
      {"add_", [](auto& a, auto& b) { return at::_foreach_add_(a, b), a; }},
      {"copy_", [](auto& a, auto& b) { return at::_foreach_copy_(a, b), a; }},
      {"mul_", [](auto& a, auto& b) { return at::_foreach_mul_(a, b), a; }},
  };
  return all;
}

// A copy with the same placements, which clone() does not guarantee.
at::Tensor copy_of(const at::Tensor& t) {
  const DTensor given(t);
  return DTensor::from_local(given.to_local().clone(), given.mesh(), given.placements(), t.sizes(), t.strides());
}

RC_GTEST_PROP(ListMoves, ListOperatorsAreBitEqualToSeparateCalls, ()) {
  const auto shape = *rc::gen::elementOf(mesh_shapes());
  const auto& op = operators()[*rc::gen::inRange<std::size_t>(0, operators().size())];
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    Tensors a, b, one_a, one_b, expected;
    for (std::int64_t i = 0, n = draw.integer(1, 9); i < n; ++i) {
      const auto sizes = draw.sizes(draw.integer(0, 3), 0, 5);
      const auto type = draw.coin() ? at::kFloat : at::kDouble;
      const auto make = [&] {
        return distribute_tensor(draw.normal(sizes, type), mesh,
                                 draw.placements(mesh, static_cast<std::int64_t>(sizes.size())));
      };
      a.push_back(make());
      b.push_back(make());
      one_a.push_back(copy_of(a.back()));
      one_b.push_back(copy_of(b.back()));
    }
    for (std::size_t i = 0; i < a.size(); ++i) expected.push_back(op.run({one_a[i]}, {one_b[i]})[0]);
    const auto actual = op.run(a, b);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto what = c10::str(op.name, " of ", DTensor(a[i]).spec_str(), " and ", DTensor(b[i]).spec_str());
      ASSERT_EQ(DTensor(actual[i]).placements(), DTensor(expected[i]).placements()) << what;
      EXPECT_TRUE(local(actual[i]).equal(local(expected[i]))) << what;
    }
  });
  RC_ASSERT(!testing::Test::HasFailure());
}

// cat and stack are list operators as well.
RC_GTEST_PROP(ListMoves, CatAndStack, ()) {
  const auto shape = *rc::gen::elementOf(mesh_shapes());
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    const auto sizes = draw.sizes(2, 0, 5);
    Tensors regular, placed;
    for (std::int64_t i = 0, n = draw.integer(1, 6); i < n; ++i) {
      regular.push_back(draw.normal(sizes).requires_grad_());
      placed.push_back(distribute_tensor(regular.back().detach(), mesh, draw.placements(mesh, 2)).requires_grad_());
    }
    const auto dim = draw.integer(0, 1);
    for (const bool stacks : {false, true}) {
      const auto run = [&](const Tensors& list) { return stacks ? at::stack(list, dim) : at::cat(list, dim); };
      const auto full = run(regular), split = run(placed);
      expect_close(split.detach(), full.detach(), "forward");
      full.sin().sum().backward();
      split.sin().sum().backward();
      for (std::size_t i = 0; i < regular.size(); ++i) expect_close(placed[i].grad(), regular[i].grad(), "grad");
    }
  });
  RC_ASSERT(!testing::Test::HasFailure());
}

}  // namespace
}  // namespace dtensor::test
