// MixtureOfExperts in a BitIdentical scope has the bits of one device, forward and backward, whatever ranks hold the
// experts and the tokens. What has no form is refused by name.
#include "bit_identical/bits.h"
#include "dtensor/moe.h"
#include "dtensor/nn/float8.h"
#include "dtensor/parallelize.h"
#include "support/draws.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

constexpr std::int64_t kHidden = 24, kFfn = 40, kBlock = 8, kBatch = 4, kTokens = 30;

struct Case {
  MoeOptions options;
  DispatchKind dispatch = DispatchKind::all_to_all;
  CapacityOptions capacity = {};
  std::uint64_t seed = 1;
  bool trains = true;
};

struct Layout {
  Shape shape = {1, 1};  // dense: shard x tp
  std::int64_t ep = 1, etp = 1;
  Placements tokens = {Replicate(), Replicate()};
  bool units = false;
};

std::string text_of(const Layout& l) {
  return c10::str(l.shape, " ep ", l.ep, " etp ", l.etp, ", tokens ", to_string(l.tokens), l.units ? ", units" : "");
}

MoeOptions options_of(nn::Activation activation = nn::Activation::swiglu) {
  MoeOptions o{.hidden = kHidden, .ffn = kFfn, .tensor = at::TensorOptions(at::kFloat)};
  o.router.experts = 4, o.router.normalize = true;
  o.experts.activation = activation;
  return o;
}

void fill(MixtureOfExperts& layer, std::uint64_t seed) {
  Draw draw(seed);
  const at::NoGradGuard no_grad;
  for (const auto& [name, p] : layer.named_parameters()) {
    p->copy_(draw.normal(p->sizes().vec(), at::kFloat).mul_(0.3).to(p->scalar_type()));
  }
}

void place(MixtureOfExperts& layer, const DeviceMesh& dense, const Layout& layout) {
  const auto edp = dense.size() / layout.ep / layout.etp;
  apply_expert_parallel(layer, dense.view({edp, layout.ep, layout.etp}, {"edp", "ep", "etp"}));
  NamedTensors rest;
  for (const auto& item : layer.named_parameters()) {
    if (!is_dtensor(*item.second)) rest.push_back(item);
  }
  nn::distribute(rest, dense, [](const auto&, const auto&) { return Placements(2); });
  if (layout.units) fully_shard(layer, dense, {.shard_axes = {"shard"}});
}

// Result, loss, gradients of the tokens and the parameters, and the bias of the balancer.
Tensors run_layer(const DeviceMesh& dense, const Case& c, const Layout& layout) {
  MixtureOfExperts layer(c.options);
  layer.train(c.trains);
  layer.set_dispatch(c.dispatch, c.capacity);
  fill(layer, c.seed);
  place(layer, dense, layout);
  Draw draw(c.seed + 1);
  const auto type = c.options.tensor.dtype().toScalarType();
  const at::Tensor values = draw.normal({kBatch, kTokens, kHidden}, type),
                   grad = draw.normal(values.sizes().vec(), type);
  const at::Tensor x = distribute_tensor(values, dense, layout.tokens).requires_grad_();
  const BitIdentical scope(kBlock);
  const at::Tensor tokens = x * 1;
  const auto made = layer.run(tokens);
  TORCH_CHECK(DTensor(made.y).placements() == DTensor(tokens).placements(), "expected the placements of the tokens");
  auto total = (made.y * distribute_tensor(grad, dense, layout.tokens)).sum();
  if (made.loss.defined()) total = total + made.loss;
  total.backward();
  Tensors results{full_of(made.y.detach()), full_of(x.grad())};
  if (made.loss.defined()) results.push_back(full_of(made.loss.detach()));
  for (const auto& [name, p] : layer.named_parameters()) results.push_back(full_of(p->grad()));
  if (layer.balancer() != nullptr) {
    update_load_balancers(layer, dense.communicator());
    results.push_back(full_of(layer.balancer()->bias).clone());
  }
  return results;
}

Tensors run_layout(const Case& c, const Layout& layout, int threads = 1) {
  Tensors results;
  RunOptions how;
  how.set_threads = false;
  run_local(
      count(layout.shape),
      [&](const Communicator& world) {
        at::set_num_threads(threads);
        auto own = run_layer(init_device_mesh(world, at::kCPU, layout.shape, {"shard", "tp"}), c, layout);
        if (world.rank() == 0) results = std::move(own);
      },
      how);
  return results;
}

void require_layout(const Case& c, const Layout& layout, const Tensors& expected) {
  require_same_bits(run_layout(c, layout), expected, text_of(layout));
}

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

Case drawn_case() {
  Case c{options_of(one_of({nn::Activation::swiglu, nn::Activation::gelu, nn::Activation::relu}))};
  auto& router = c.options.router;
  router.top_k = one_of<std::int64_t>({1, 2, 3});
  router.score = one_of({RouterScore::softmax, RouterScore::sigmoid});
  router.normalize = one_of({true, false}), router.scale = one_of({1.0, 2.5});
  if (router.top_k < 3 && one_of({true, false})) router.groups = 2;
  if (one_of({true, false})) router.aux_loss = 0.1;
  if (one_of({true, false})) router.z_loss = 0.01;
  if (one_of({true, false})) c.options.shared_ffn = 20;
  if (one_of({true, false})) c.options.balance_rate = 0.1;
  c.options.scale_expert_gradients = one_of({true, false});
  c.options.tensor = at::TensorOptions(one_of({at::kFloat, at::kFloat, at::kBFloat16, at::kDouble}));
  c.dispatch = one_of({DispatchKind::all_to_all, DispatchKind::padded, DispatchKind::capacity});
  c.capacity = {1.25, one_of({CapacityOptions::Drop::position, CapacityOptions::Drop::probability})};
  c.seed = *rc::gen::inRange<std::uint64_t>(1, 1u << 20);
  c.trains = one_of({true, false});
  return c;
}

Layout drawn_layout() {
  Layout l{one_of<Shape>({{1, 2}, {2, 1}, {2, 2}, {4, 1}, {1, 4}, {3, 1}})};
  l.etp = one_of<std::int64_t>({1, l.shape[1]});
  const auto rest = count(l.shape) / l.etp;
  l.ep = rest % 2 == 0 ? one_of<std::int64_t>({1, 2, rest}) : 1;
  const auto token = [] { return one_of<Placement>({Replicate(), Shard(0), Shard(1), Shard(2), ZigzagShard(1)}); };
  l.tokens = {token(), token()};
  l.units = one_of({true, false});
  return l;
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
