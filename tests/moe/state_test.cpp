// State that a layer keeps between passes: weights, counts and statistics. Also autocast and edge cases of row kernels.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "moe/dispatch/permute.h"
#include "moe/routing/router_parts.h"
#include "small_layer.h"

namespace dtensor::test {
namespace {

MoeOptions round_robin() {
  auto options = small_options();
  options.router.choice = RouterChoice::round_robin;
  return options;
}

TEST(MoeState, WritesThroughDataInvalidateTheCache) {
  MixtureOfExperts layer(round_robin()), other(round_robin());
  fill(layer, 3), fill(other, 3);
  const at::NoGradGuard no_grad;
  const auto x = Draw(7).normal({8, 8});
  layer.forward(x);
  layer.experts.w2.data().mul_(2);  // writing to .data keeps the version
  other.experts.w2.mul_(2);
  expect_close(layer.forward(x), other.forward(x), "y");
}

TEST(MoeState, WritesToStatisticsDoNotChangeResults) {
  MixtureOfExperts layer(round_robin());
  fill(layer, 3);
  const at::NoGradGuard no_grad;
  const auto x = Draw(7).normal({8, 8});
  const auto y = layer.forward(x);
  layer.stats().load.add_(1);
  EXPECT_TRUE(at::equal(layer.forward(x), y));
}

TEST(MoeState, ResetClearsTheLoad) {
  auto options = small_options();
  options.balance_rate = 0.1;
  MixtureOfExperts layer(options);
  layer.forward(Draw(1).normal({6, 8}));
  layer.reset();
  EXPECT_EQ(layer.balancer()->counts.sum().item<std::int64_t>(), 0);
}

TEST(MoeState, FailedSetDispatcherKeepsThePreviousOne) {
  MixtureOfExperts layer(small_options());
  const auto x = Draw(1).normal({4, 8});
  const auto y = layer.forward(x).detach();
  EXPECT_THROW(layer.set_dispatcher([](const Communicator&) { return std::shared_ptr<const Dispatcher>(); }),
               c10::Error);
  EXPECT_TRUE(at::equal(layer.forward(x), y));
}

// A dispatcher that ignores the overlap function.
class NoOverlapDispatcher final : public Dispatcher {
 public:
  NoOverlapDispatcher() : Dispatcher({}) {}
  DispatchPlan prepare(const Routing& r, const TokenLayout& l) const override { return inner_->prepare(r, l); }
  at::Tensor dispatch(const at::Tensor& x, DispatchPlan& plan, const std::function<void()>&) const override {
    return inner_->dispatch(x, plan);
  }
  at::Tensor combine(const at::Tensor& rows, const DispatchPlan& plan, const at::Tensor& base,
                     at::TensorList keep) const override {
    return inner_->combine(rows, plan, base, keep);
  }
  const char* name() const override { return "NoOverlapDispatcher"; }

 private:
  std::shared_ptr<const Dispatcher> inner_ = make_dispatcher(DispatchKind::all_to_all, {});
};

TEST(MoeState, SharedExpertRunsWithoutOverlap) {
  auto options = small_options();
  options.shared_ffn = 4;
  MixtureOfExperts layer(options);
  fill(layer, 3);
  const auto x = Draw(1).normal({4, 8});
  const auto y = layer.forward(x).detach();
  layer.set_dispatcher([](const Communicator&) { return std::make_shared<NoOverlapDispatcher>(); });
  expect_close(layer.forward(x).detach(), y, "y");
}

TEST(MoeState, CountsOfOneRankAfterCountsOfAllRanks) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 1}, {"a", "b"});
    SharedCounts counts(at::full({3}, world.rank() + 1, at::kLong));
    counts.of_ranks(world);
    EXPECT_TRUE(at::equal(counts.of_ranks(mesh.communicator(1)), counts.local().unsqueeze(0)));
  });
}

TEST(MoeState, GateIgnoresAutocast) {
  RouterOptions o;
  o.experts = 4;
  const auto x = Draw(1).normal({6, 8}, at::kFloat), gate = Draw(2).normal({4, 8}, at::kFloat);
  const auto regular = route(x, gate, o);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto cast = route(x, gate, o);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(at::equal(cast.scores, regular.scores));
}

// Rows that no position refers to.
TEST(MoeState, UnreferencedRowsAreZero) {
  const auto position = at::tensor({0, -1, 2, -1}, at::kLong).view({2, 2});
  const auto unnamed = at::tensor({1, 3}, at::kLong);
  for (const bool weighted : {false, true}) {
    const auto rows = at::ones({4, 64}, at::kDouble).requires_grad_();
    unpermute_tokens(rows, position, weighted ? at::ones({2, 2}, at::kDouble) : at::Tensor()).sum().backward();
    EXPECT_EQ(rows.grad().index_select(0, unnamed).abs().max().item<double>(), 0) << weighted;
  }
  const auto spread = permute_tokens(at::ones({2, 64}, at::kDouble), position, 4);
  EXPECT_EQ(spread.index_select(0, unnamed).abs().max().item<double>(), 0);
}

// Blocks may be repeated or missing, and rows may have any sizes.
TEST(MoeState, BlocksMayBeRepeated) {
  const auto x = Draw(1).normal({3, 2, 2}).requires_grad_();
  const auto twice = gather_blocks(x, {1, 2}, {0, 0});
  EXPECT_TRUE(at::equal(twice, at::cat({x.narrow(0, 0, 1), x.narrow(0, 0, 1)})));
  twice.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::cat({at::full({1, 2, 2}, 2, at::kDouble), at::zeros({2, 2, 2}, at::kDouble)})));
  EXPECT_EQ(gather_blocks(x, {1, 2}, {}).sizes(), at::IntArrayRef({0, 2, 2}));
}

}  // namespace
}  // namespace dtensor::test
