// The all-to-all of equal segments, for any position of the ranks of ep in the batch.
#include <gtest/gtest.h>

#include <atomic>

#include "small_layer.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

MoeOptions round_robin() {
  auto options = small_options();
  options.router.choice = RouterChoice::round_robin;
  options.router.top_k = 1;
  return options;
}

// Ranks of ep that are not adjacent in the batch.
TEST(EqualExchange, UsesThePositionOfEachRankInTheBatch) {
  const auto options = round_robin();
  const auto x = Draw(7).normal({8, 8});
  MixtureOfExperts one(options);
  fill(one, 3);
  const at::NoGradGuard no_grad;
  const auto wanted = one.forward(x);
  const std::pair<Shape, std::vector<std::string>> views[] = {{{2, 2}, {"ep", "edp"}},
                                                              {{1, 2, 2}, {"edp", "ep", "etp"}}};
  for (const auto& [shape, names] : views) {
    run_local(4, [&, &shape = shape, &names = names](Communicator world) {
      const at::NoGradGuard none;
      const auto dense = init_device_mesh(world, at::kCPU, {2, 2}, {"dp", "tp"});
      MixtureOfExperts layer(options);
      fill(layer, 3);
      apply_expert_parallel(layer, dense.view(shape, names));
      layer.set_dispatch(DispatchKind::equal);
      expect_close(DTensor(layer.forward(distribute_tensor(x, dense, {Shard(0), Shard(0)}))).full_tensor(), wanted,
                   "y");
    });
  }
}

// One rank has the mean number of tokens.
TEST(EqualExchange, UnequalNumbersOfTokensAreOneErrorOnEveryRank) {
  auto options = round_robin();
  options.router.experts = 3;
  run_local(3, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {3}, {"ep"});
    MixtureOfExperts layer(options);
    fill(layer, 3);
    apply_expert_parallel(layer, mesh);
    layer.set_dispatch(DispatchKind::equal);
    const auto x = distribute_tensor(Draw(7).normal({6, 8}), mesh, {RaggedShard(0, {2, 3, 1})});
    const auto error = error_of([&] { layer.forward(x); });
    EXPECT_NE(error.find("EqualAllToAll: 6 tokens on 3 ranks, 1 to 3 on each"), std::string::npos) << error;
  });
}

// Bytes that this rank receives in each exchange of rows, and the layer's result.
struct Exchanged {
  std::vector<std::int64_t> bytes;
  at::Tensor y, dx;
};

Exchanged run_kind(DispatchKind kind, const DeviceMesh& mesh, const at::Tensor& x, MoeCounters& counters) {
  MixtureOfExperts layer(small_options());
  fill(layer, 3);
  apply_expert_parallel(layer, mesh);
  layer.set_dispatch(kind);
  const auto input = distribute_tensor(x, mesh, {Shard(0)}).requires_grad_();
  Exchanged result;
  const MoeCountersScope counting(counters);
  const EventListener listener([&](const Event& event) {
    if (event.kind == Event::Kind::collective && event.name == "all_to_all") result.bytes.push_back(event.bytes);
  });
  const auto y = layer.forward(input);
  y.square().sum().backward();
  result.y = DTensor(y.detach()).to_local();
  result.dx = DTensor(input.grad()).to_local();
  return result;
}

TEST(PaddedExchange, SendsSegmentsOfOneSizeAndEqualsTheGeneralExchangeBitForBit) {
  for (const int ranks : {2, 4}) {
    std::vector<std::vector<std::int64_t>> bytes(ranks), general(ranks);
    std::atomic<std::int64_t> padding{0};
    run_local(ranks, [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, {ranks}, {"ep"});
      const auto x = Draw(7).normal({13, 8});
      MoeCounters none, padded;
      const auto wanted = run_kind(DispatchKind::all_to_all, mesh, x, none);
      const auto got = run_kind(DispatchKind::padded, mesh, x, padded);
      EXPECT_TRUE(at::equal(got.y, wanted.y));
      EXPECT_TRUE(at::equal(got.dx, wanted.dx));
      EXPECT_EQ(none.padding_rows, 0);
      padding += padded.padding_rows;
      bytes[world.rank()] = got.bytes;
      general[world.rank()] = wanted.bytes;
    });
    EXPECT_GT(padding.load(), 0);
    EXPECT_EQ(bytes[0].size(), 4u);  // rows there and back, and their gradients
    for (const auto& each : bytes) EXPECT_EQ(each, bytes[0]);
    EXPECT_NE(general, bytes);
  }
}

// The router computes in float, but 16-bit tokens or a 16-bit gate have been rounded before.
TEST(MoeCounters, CountsScoresOfRoundedOperands) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    MixtureOfExperts layer(small_options(type));
    MoeCounters counters;
    const MoeCountersScope counting(counters);
    layer.forward(at::ones({4, 8}, type));
    EXPECT_EQ(counters.rounded_scores, type == at::kBFloat16 || type == at::kHalf ? 1 : 0) << type;
  }
}

}  // namespace
}  // namespace dtensor::test
