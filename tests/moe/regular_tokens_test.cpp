// Regular tokens on each rank: ranks do not know the numbers of the others, and results equal those of the full batch.
#include <gtest/gtest.h>

#include "moe/routing/router_parts.h"
#include "small_layer.h"

namespace dtensor::test {
namespace {

// Returns the first `first` rows of x on rank 0 and the rest on rank 1.
at::Tensor part_of(const at::Tensor& x, const Communicator& world, std::int64_t first) {
  return world.rank() == 0 ? x.narrow(0, 0, first) : x.narrow(0, first, x.size(0) - first);
}

// On two ranks that share the experts, results and the sum of the losses equal one device.
void expect_one_device(const MoeOptions& options, const at::Tensor& x, std::int64_t first,
                       DispatchKind kind = DispatchKind::all_to_all) {
  const CapacityOptions capacity{.factor = 0.7};
  MixtureOfExperts one(options);
  fill(one, 4);
  one.set_dispatch(kind, capacity);
  const auto wanted = one.run(x);
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
    MixtureOfExperts layer(options);
    fill(layer, 4);
    layer.gate.weight = distribute_tensor(layer.gate.weight.detach(), mesh, {Replicate()}).requires_grad_();
    apply_expert_parallel(layer, mesh);
    layer.set_dispatch(kind, capacity);
    const auto got = layer.run(part_of(x, world, first));
    expect_close(got.y.detach(), part_of(wanted.y.detach(), world, first), c10::str("y, ", first, " on rank 0"));
    if (!wanted.loss.defined()) return;
    auto loss = got.loss.detach().clone();
    world.all_reduce(loss, ReduceOp::sum).wait();
    expect_close(loss, wanted.loss.detach(), c10::str("loss, ", first, " on rank 0"));
  });
}

TEST(RegularTokens, MayBeUnequalNumbersOfSequences) {
  auto options = small_options();
  options.router.sequence_aux_loss = 1;
  for (const std::int64_t first : {2, 3, 4}) expect_one_device(options, Draw(2).normal({4, 3, 8}), first);
}

TEST(RegularTokens, AreCountedForExpertChoice) {
  auto options = small_options();
  options.router.choice = RouterChoice::experts;
  options.router.z_loss = 1;
  for (const std::int64_t first : {4, 3}) expect_one_device(options, Draw(2).normal({8, 8}), first);
}

TEST(RegularTokens, RoundRobinFollowsTheOrderOfRanks) {
  auto options = small_options();
  options.router.choice = RouterChoice::round_robin;
  options.router.top_k = 1;
  for (const std::int64_t first : {3, 4, 0}) expect_one_device(options, Draw(7).normal({5, 8}), first);
}

// The last choice of each token has no expert, so the number of entries does not determine the number of tokens.
class DropsLastToken final : public RoutingStrategy {
 public:
  Choice choose(const at::Tensor& scores, const RouterOptions& o, const TokenLayout&,
                const at::Tensor&) const override {
    auto experts = std::get<1>(scores.topk(o.top_k, 1));
    experts.select(1, o.top_k - 1).fill_(o.experts);
    return {.experts = experts, .complete = false};
  }
  const char* name() const override { return "DropsLastToken"; }
};

TEST(RegularTokens, MayHaveChoicesWithoutAnExpert) {
  auto options = small_options();
  options.router.strategy = std::make_shared<DropsLastToken>();
  options.router.z_loss = 1;
  for (const auto kind : {DispatchKind::all_to_all, DispatchKind::all_gather, DispatchKind::capacity}) {
    expect_one_device(options, Draw(2).normal({8, 8}), 4, kind);
  }
}

TEST(RegularTokens, EntriesWithoutAnExpertAreCountedAfterDropping) {
  RouterOptions o;
  o.experts = 4, o.top_k = 2;
  o.strategy = std::make_shared<DropsLastToken>();
  auto routing = route(Draw(1).normal({6, 8}), Draw(2).normal({4, 8}), o);
  EXPECT_GT(drop_over_capacity(routing, {}, {.factor = 0.5}), 0);
  EXPECT_EQ(routing.empty, routing.experts.eq(4).sum().item<std::int64_t>());
}

// Weights of the shared expert are DTensors: they are gathered for local tokens, as the gate's are.
TEST(RegularTokens, WorkWithAShardedSharedExpert) {
  auto options = small_options();
  options.shared_ffn = 4;
  const auto x = Draw(1).normal({4, 8});
  MixtureOfExperts one(options);
  fill(one, 3);
  const auto wanted = one.forward(x);
  wanted.square().sum().backward();
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"shard"});
    for (const bool ep : {false, true}) {
      MixtureOfExperts layer(options);
      fill(layer, 3);
      if (ep) apply_expert_parallel(layer, mesh.view({2}, {"ep"}));
      fully_shard(layer, mesh);
      const auto y = layer.forward(part_of(x, world, 1));
      expect_close(y.detach(), part_of(wanted.detach(), world, 1), "y");
      y.square().sum().backward();
      const auto got = layer.parameters(), all = one.parameters();
      for (std::size_t i = 0; i < all.size(); ++i) expect_close(got[i].grad(), all[i].grad(), c10::str(ep, i));
    }
  });
}

}  // namespace
}  // namespace dtensor::test
