// RoutedExperts in a BitIdentical scope have the bits of one device, forward and backward, whatever ranks hold the
// experts and the tokens.
#include "dtensor/moe.h"
#include "bit_identical/bits.h"
#include "dtensor/parallelize.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

constexpr std::int64_t kHidden = 24, kExperts = 4, kBlock = 8;

struct Expert final : nn::Module {
  Expert() : norm(kHidden), up(kHidden, 40, /*bias=*/true), down(40, kHidden, /*bias=*/true) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& rows) const {
    return down.forward(at::gelu(up.forward(norm.forward(rows)))) + rows;
  }
  nn::LayerNorm norm;
  nn::Linear up, down;
};

struct Block final : nn::Module {
  Block() : router(kHidden, kExperts, /*bias=*/true) {
    for (std::int64_t e = 0; e < kExperts; ++e) experts.add(std::make_unique<Expert>());
    register_module("router", router);
    register_module("experts", experts);
    Draw draw(3);
    const at::NoGradGuard no_grad;
    for (const auto& [name, p] : named_parameters()) p->copy_(draw.normal(p->sizes().vec(), at::kFloat));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto [weights, ids] = at::softmax(router.forward(x), -1).topk(2, -1);
    return x + experts.forward(x, ids, weights);
  }
  nn::Linear router;
  RoutedExperts experts;
};

struct Layout {
  Shape shape;  // shard x tp
  Placements tokens = {Shard(0), Replicate()};
  std::vector<std::string> axes = {"edp", "ep"};
  bool refused = false;  // rows arrive in another order than that of the tokens
};

std::string text_of(const Layout& layout) {
  return c10::str(layout.shape, " as ", layout.axes, ", tokens ", to_string(layout.tokens));
}

// The result, the gradient of the tokens, and those of the parameters, undefined on ranks without the expert.
Tensors run_block(const DeviceMesh& dense, const Layout& layout) {
  Block block;
  apply_expert_parallel(block, dense.view(dense.shape(), layout.axes));
  NamedTensors rest;
  for (const auto& item : block.named_parameters()) {
    if (!is_dtensor(*item.second)) rest.push_back(item);
  }
  nn::distribute(rest, dense, [](const auto&, const auto&) { return Placements(2); });
  Draw draw(9);
  const at::Tensor values = draw.normal({4, 30, kHidden}, at::kFloat), grad = draw.normal({4, 30, kHidden}, at::kFloat);
  const at::Tensor x = distribute_tensor(values, dense, layout.tokens).requires_grad_();
  const BitIdentical scope(kBlock);
  const at::Tensor y = block.forward(x);
  y.backward(distribute_tensor(grad, dense, layout.tokens));
  Tensors results{full_of(y.detach()), full_of(x.grad())};
  for (const auto& [name, p] : block.named_parameters()) {
    results.push_back(DTensor(*p).mesh().is_member() ? full_of(p->grad()) : at::Tensor());
  }
  return results;
}

void check_rank(const DeviceMesh& dense, const Layout& layout, const Tensors& expected) {
  Tensors own;
  std::string refusal;
  try {
    own = run_block(dense, layout);
  } catch (const c10::Error& error) {
    refusal = error.what_without_backtrace();
  }
  const bool refused = refusal.find("RoutedExperts has no bit-identical form") != std::string::npos;
  TORCH_CHECK(refused == layout.refused && (refused || refusal.empty()), text_of(layout), ": ", refusal);
  for (std::size_t i = 0; i < own.size(); ++i) {
    TORCH_CHECK(!own[i].defined() || same_bits(own[i], expected[i]), text_of(layout), ": result ", i, " differs");
  }
}

TEST(BitIdenticalExperts, RoutedExpertsHaveTheBitsOfOneDevice) {
  const Placements sequences{Shard(0), Shard(1)};
  const std::vector<Layout> layouts{{{1, 2}},
                                    {{2, 1}},
                                    {{2, 2}},
                                    {{1, 4}},
                                    {{2, 2}, {Shard(0), Shard(0)}},
                                    {{2, 1}, sequences},
                                    {{1, 2}, sequences},
                                    {{2, 2}, sequences},
                                    {{2, 2}, {Shard(0), Replicate()}, {"ep", "edp"}, true}};
  Tensors expected;
  run_local(1, [&](const Communicator& world) {
    expected = run_block(init_device_mesh(world, at::kCPU, {1, 1}, {"shard", "tp"}), {{1, 1}});
  });
  for (const Layout& layout : layouts) {
    run_local(count(layout.shape), [&](const Communicator& world) {
      check_rank(init_device_mesh(world, at::kCPU, layout.shape, {"shard", "tp"}), layout, expected);
    });
  }
}

// An expert's rows are cut into leaves in any token, so gradients of microbatches are other sums, even if each has a
// power of two of leaves.
TEST(BitIdenticalExperts, MicrobatchesAreRefused) {
  run_local(1, [&](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {1});
    Block block;
    nn::distribute(block.named_parameters(), mesh, [](const auto&, const auto&) { return Placements(1); });
    const auto place = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Replicate()}); };
    const at::Tensor x = place(Draw(9).normal({2 * kExperts, kHidden}, at::kFloat));
    const at::Tensor ids = place(at::arange(2 * kExperts).remainder(kExperts).unsqueeze(1));
    const at::Tensor weights = place(at::ones({2 * kExperts, 1}));
    const BitIdentical scope(kBlock);
    const auto run = [&] { block.experts.forward(x, ids, weights).sum().backward(); };
    run();
    EXPECT_NE(error_of(run).find("because of RoutedExperts"), std::string::npos);
  });
}

}  // namespace
}  // namespace dtensor::test
