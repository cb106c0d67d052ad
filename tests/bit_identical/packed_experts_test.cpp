// MixtureOfExperts in a BitIdentical scope has the bits of one device, forward and backward, whatever ranks hold the
// experts and the tokens. What has no form is refused by name.
#include "bit_identical/packed_layers.h"
#include "dtensor/nn/float8.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

using namespace packed_layers;

TEST(BitIdenticalPackedExperts, HaveTheBitsOfOneDevice) {
  Case c{options_of()};
  c.options.router.aux_loss = 0.1, c.options.router.z_loss = 0.01;
  c.options.shared_ffn = 20, c.options.shared_gate = true, c.options.balance_rate = 0.1;
  const auto expected = run_layout(c, {});
  EXPECT_NO_THROW(require_same_bits(run_layout(c, {}, 2), expected, "2 threads"));
  const Placements rows{Shard(0), Shard(0)}, sequences{Shard(0), Shard(1)}, replicated{Replicate(), Replicate()};
  const std::vector<Layout> layouts{{{1, 2}, 2},
                                    {{2, 1}, 2, 1, rows},
                                    {{2, 1}, 1, 1, rows, true},
                                    {{1, 4}, 4},
                                    {{4, 1}, 4, 1, rows, true},
                                    {{4, 1}, 2, 1, rows, true},
                                    {{3, 1}, 1, 1, rows, true},
                                    {{1, 2}, 1, 2},
                                    {{2, 2}, 2, 2, {Shard(0), Replicate()}, true},
                                    {{2, 2}, 2, 2, sequences},
                                    {{2, 2}, 1, 2, rows, true},
                                    {{1, 2}, 2, 1, sequences},
                                    {{2, 2}, 2, 1, sequences, true},
                                    {{2, 2}, 4, 1, {Shard(1), Shard(0)}},
                                    {{2, 2}, 4, 1, {Replicate(), ZigzagShard(1)}},
                                    {{2, 2}, 2, 1, {Shard(2), Replicate()}}};
  for (const auto& layout : layouts) EXPECT_NO_THROW(require_layout(c, layout, expected)) << text_of(layout);
}

// The values are those outside of the scope, up to rounding.
TEST(BitIdenticalPackedExperts, HaveTheValuesOfTheOrdinaryLayer) {
  Case c{options_of()};
  c.options.router.aux_loss = 0.1, c.options.router.z_loss = 0.01, c.options.shared_ffn = 20;
  const auto scoped = run_layout(c, {});
  run_local(1, [&](const Communicator&) {
    MixtureOfExperts layer(c.options);
    fill(layer, c.seed);
    Draw draw(c.seed + 1);
    const at::Tensor x = draw.normal({kBatch, kTokens, kHidden}, at::kFloat).requires_grad_();
    const at::Tensor grad = draw.normal(x.sizes().vec(), at::kFloat);
    const auto made = layer.run(x);
    ((made.y * grad).sum() + made.loss).backward();
    Tensors expected{made.y.detach(), x.grad(), made.loss.detach()};
    for (const auto& [name, p] : layer.named_parameters()) expected.push_back(p->grad());
    ASSERT_EQ(scoped.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(scoped[i], expected[i], 1e-4, 1e-4)) << i;
    }
  });
}

void layers_have_equal_bits() {
  const auto c = drawn_case();
  const auto layout = drawn_layout();
  const auto expected = run_layout(c, {});
  require_same_bits(run_layout(c, {}, 2), expected, "2 threads");
  require_layout(c, layout, expected);
}

TEST(BitIdenticalPackedExperts, AnyOptionsAndLayoutHaveTheBitsOfOneDevice) {
  check_property("layers of experts in a BitIdentical scope", layers_have_equal_bits, 60);
}

struct Refused {
  const char* name;
  std::function<void(Case&)> change;
};

TEST(BitIdenticalPackedExperts, WhatHasNoFormIsRefusedByName) {
  const std::vector<Refused> all{
      {"jitter", [](Case& c) { c.options.router.jitter = 0.1; }},
      {"RouterChoice::experts", [](Case& c) { c.options.router.choice = RouterChoice::experts; }},
      {"sequence_aux_loss", [](Case& c) { c.options.router.sequence_aux_loss = 0.1; }},
      {"score_before_experts", [](Case& c) { c.options.score_before_experts = true; }},
      {"the dispatcher AllGather", [](Case& c) { c.dispatch = DispatchKind::all_gather; }}};
  for (const auto& [name, change] : all) {
    Case c{options_of()};
    change(c);
    for (const Layout& layout : {Layout{}, Layout{{1, 2}, 2}}) {
      const auto error = error_of([&] { run_layout(c, layout); });
      EXPECT_NE(error.find(name), std::string::npos) << error;
      EXPECT_NE(error.find("has no bit-identical form"), std::string::npos) << error;
    }
  }
}

TEST(BitIdenticalPackedExperts, RegularTokensAndOtherOrdersAreRefused) {
  run_local(4, [](const Communicator& world) {
    const BitIdentical scope;
    MixtureOfExperts layer(options_of());
    const auto tokens = at::ones({8, kHidden});
    EXPECT_NE(error_of([&] { layer.run(tokens); }).find("of regular tensors"), std::string::npos);
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"ep", "edp"});
    const auto x = distribute_tensor(tokens, mesh, Placements(2));
    EXPECT_NE(error_of([&] { layer.run(x); }).find("without apply_expert_parallel"), std::string::npos);
    apply_expert_parallel(layer, mesh);
    EXPECT_NE(error_of([&] { layer.run(x); }).find("in another order"), std::string::npos);
  });
}

}  // namespace
}  // namespace dtensor::test
