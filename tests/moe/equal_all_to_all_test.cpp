// The all-to-all of equal segments, for any position of the ranks of ep in the batch.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace dtensor::test
