// Collectives and bytes of graph halos, against a formula.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "cases.h"

namespace dtensor::test::halo {
namespace {

CommDebugMode::Count count_of(const std::function<void()>& run) {
  const CommDebugMode mode;
  run();
  return mode.total();
}

void expect_count(const CommDebugMode::Count& count, std::int64_t calls, std::int64_t bytes, const char* what) {
  EXPECT_EQ(count.calls, calls) << what;
  EXPECT_EQ(count.bytes, bytes) << what;
}

// A number for each other rank, then two numbers for the all-reduce.
RC_GTEST_PROP(GraphHaloCost, ConstructionExchangesOneNumberPerRank, (const std::uint32_t seed)) {
  const int ranks = 1 + static_cast<int>(seed % 4);
  run_local(ranks, [&](Communicator world) {
    Draw draw(seed);
    const RandomLists lists(draw, ranks);
    const CommDebugMode mode;
    const GraphHalo halo(world, lists.owned[world.rank()], lists.of(world.rank()));
    EXPECT_EQ(mode.total().calls, 2);
    expect_count(mode.total("all_to_all"), 1, 8 * (ranks - 1), "sizes");
  });
}

// Each exchange receives the remote ghosts once, each adjoint the remote copies of own rows: ghost rows x features.
RC_GTEST_PROP(GraphHaloCost, BytesAreGhostRowsTimesFeatures, (const std::uint32_t seed)) {
  const int ranks = 1 + static_cast<int>(seed % 4);
  run_local(ranks, [&](Communicator world) {
    Draw draw(seed);
    const RandomLists lists(draw, ranks);
    const int me = world.rank();
    const std::int64_t features = draw.integer(1, 4), calls = lists.remote() ? 1 : 0;
    const std::int64_t ghosts = lists.received(me) * features * 8, copies = lists.sent(me) * features * 8;
    const GraphHalo halo(world, lists.owned[me], lists.of(me));
    const auto x = at::ones({halo.owned(), features}, at::kDouble).requires_grad_();
    at::Tensor h, grad;
    expect_count(count_of([&] { h = halo.exchange(x); }), calls, ghosts, "exchange");
    const auto first = [&] { grad = torch::autograd::grad({h.square().sum()}, {x}, {}, true, true)[0]; };
    expect_count(count_of(first), calls, copies, "backward");
    // The gradient is reduce(2 exchange(x)): its backward exchanges, then reduces.
    const auto second = [&] { torch::autograd::grad({grad.square().sum()}, {x}); };
    expect_count(count_of(second), 2 * calls, ghosts + copies, "second derivative");
    expect_count(count_of([&] { halo.reduce(h.detach()); }), calls, copies, "reduce");
  });
}

}  // namespace
}  // namespace dtensor::test::halo
