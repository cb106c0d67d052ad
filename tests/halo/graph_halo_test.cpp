// Exchange of ghost rows: values, adjoint, first and higher derivatives against one part.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "cases.h"

namespace dtensor::test::halo {
namespace {

int draw_ranks(std::uint64_t seed) { return 1 + static_cast<int>(seed % 4); }

RC_GTEST_PROP(GraphHalo, RowsOfAnyDtypeAndShape, (const std::uint32_t seed)) {
  const at::ScalarType dtypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,        at::kLong,
                                   at::kInt,    at::kShort, at::kByte,     at::kComplexFloat};
  run_local(draw_ranks(seed), [&](Communicator world) { check_rows(world, seed, dtypes[seed / 4 % 9]); });
}

RC_GTEST_PROP(GraphHalo, EnergiesForcesAndForceLossEqualOnePart, (const std::uint32_t seed)) {
  run_local(draw_ranks(seed), [&](Communicator world) { check_graph(world, seed); });
}

// The scalar product of exchange(x) and y equals that of x and reduce(y), summed over ranks.
RC_GTEST_PROP(GraphHalo, ReduceIsAdjointToExchange, (const std::uint32_t seed)) {
  run_local(draw_ranks(seed), [&](Communicator world) {
    Draw draw(seed);
    const RandomLists lists(draw, world.size());
    const GraphHalo halo(world, lists.owned[world.rank()], lists.of(world.rank()));
    Draw own(seed + static_cast<std::uint64_t>(world.rank()) + 1);
    const auto x = own.normal({halo.owned(), 2}), y = own.normal({halo.owned() + halo.ghosts(), 2});
    const auto products = at::stack({(halo.exchange(x) * y).sum(), (x * halo.reduce(y)).sum()});
    world.all_reduce(products, ReduceOp::sum).wait();
    expect_close(products[0], products[1], "scalar products", 1e-12);
  });
}

// f = sum of c * exchange(x)^4 has the derivatives reduce(4 c x^3), reduce(12 c x^2), ... along ones.
RC_GTEST_PROP(GraphHalo, FourDerivativesEqualOneDevice, (const std::uint32_t seed)) {
  run_local(draw_ranks(seed), [&](Communicator world) {
    Draw draw(seed);
    const RandomLists lists(draw, world.size());
    const GraphHalo halo(world, lists.owned[world.rank()], lists.of(world.rank()));
    Draw own(seed + static_cast<std::uint64_t>(world.rank()) + 1);
    const auto x = own.normal({halo.owned(), 2}).requires_grad_();
    const auto c = own.normal({halo.owned() + halo.ghosts(), 2});
    at::Tensor value = (c * halo.exchange(x).pow(4)).sum();
    const double factors[] = {4, 12, 24, 24};
    for (int order = 1; order <= 4; ++order) {
      const auto grad = torch::autograd::grad({value}, {x}, {}, true, /*create_graph=*/true)[0];
      const at::NoGradGuard no_grad;
      const auto expected = factors[order - 1] * halo.reduce(c) * x.pow(4 - order);
      expect_close(grad.detach(), expected, "derivative " + std::to_string(order));
      const at::AutoGradMode grad_mode(true);
      value = grad.sum();
    }
  });
}

// The derivatives of reduce(): sum of (reduce(y))^3 has the gradient exchange(3 reduce(y)^2).
RC_GTEST_PROP(GraphHalo, DerivativesOfReduce, (const std::uint32_t seed)) {
  run_local(draw_ranks(seed), [&](Communicator world) {
    Draw draw(seed);
    const RandomLists lists(draw, world.size());
    const GraphHalo halo(world, lists.owned[world.rank()], lists.of(world.rank()));
    Draw own(seed + static_cast<std::uint64_t>(world.rank()) + 1);
    const auto y = own.normal({halo.owned() + halo.ghosts(), 2}).requires_grad_();
    const auto u = own.normal({halo.owned() + halo.ghosts(), 2});
    const auto grad = torch::autograd::grad({halo.reduce(y).pow(3).sum()}, {y}, {}, true, true)[0];
    const auto second = torch::autograd::grad({(grad * u).sum()}, {y})[0];
    const at::NoGradGuard no_grad;
    const auto sum = halo.reduce(y);
    expect_close(grad.detach(), halo.exchange(3 * sum.pow(2)), "gradient");
    expect_close(second, halo.exchange(6 * sum * halo.reduce(u)), "second derivative");
  });
}

// Central differences of the energy of all ranks, by one coordinate of one rank at a time.
TEST(GraphHalo, GradientsMatchFiniteDifferences) {
  run_local(3, [](Communicator world) {
    Draw draw(3);
    PartitionedGraph graph(draw, world.size());
    while (graph.nodes < 5 || graph.source.size() < 8) graph = PartitionedGraph(draw, world.size());
    const Part part(graph, world.rank(), world.size());
    const GraphHalo halo(world, static_cast<std::int64_t>(part.nodes.size()), part.sends);
    const auto x = draw.normal({graph.nodes, 3}), w = draw.normal({3, 3});
    const auto energy_of = [&](const at::Tensor& all) {
      return energy(all.index_select(0, as_tensor(part.nodes)), w, part.source, part.target,
                    [&](const at::Tensor& h) { return halo.exchange(h); });
    };
    const auto leaf = x.clone().requires_grad_();
    auto gradient = torch::autograd::grad({energy_of(leaf)}, {leaf})[0];
    world.all_reduce(gradient, ReduceOp::sum).wait();
    const double step = 1e-5;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      auto moved = x.clone();
      moved.view(-1)[i] += step;
      auto difference = energy_of(moved);
      moved.view(-1)[i] -= 2 * step;
      difference -= energy_of(moved);
      world.all_reduce(difference, ReduceOp::sum).wait();
      const auto expected = difference.item<double>() / (2 * step);
      EXPECT_NEAR(gradient.view(-1)[i].item<double>(), expected, 1e-7 * (1 + std::abs(expected))) << i;
    }
  });
}

// 300 copies of 1 in bfloat16 would stop at 256.
TEST(GraphHalo, SumsOfBFloat16AreNotRoundedAtEachCopy) {
  run_local(2, [](Communicator world) {
    const auto copies = at::zeros({300}, at::kLong), none = at::empty({0}, at::kLong);
    const bool first = world.rank() == 0;
    const GraphHalo halo(world, first ? 1 : 0, {none, first ? copies : none});
    for (const Shape& trailing : {Shape{}, Shape{1}, Shape{3, 2}}) {
      Shape sizes = trailing;
      sizes.insert(sizes.begin(), halo.owned() + halo.ghosts());
      const auto sum = halo.reduce(at::ones(sizes, at::kBFloat16));
      EXPECT_EQ(sum.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(sum.eq(300).all().item<bool>()) << sum;  // 301 rounded to even
    }
  });
}

TEST(GraphHalo, InputsMayHaveAnyStrides) {
  run_local(2, [](Communicator world) {
    const auto one = at::tensor({1}, at::kLong);
    const GraphHalo halo(world, 2, {one, one});
    const auto x = at::arange(6).reshape({3, 2}).t(), wide = at::arange(2).reshape({2, 1}).expand({2, 3});
    EXPECT_TRUE(at::equal(halo.exchange(x), halo.exchange(x.contiguous())));
    EXPECT_TRUE(at::equal(halo.exchange(wide), halo.exchange(wide.contiguous())));
    const auto y = at::arange(12).reshape({3, 4}).t();
    EXPECT_TRUE(at::equal(halo.reduce(y), halo.reduce(y.contiguous())));
  });
}

}  // namespace
}  // namespace dtensor::test::halo
