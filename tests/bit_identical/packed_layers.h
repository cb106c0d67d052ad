// Layers of packed experts in a BitIdentical scope: options, layouts, and a forward and backward pass in parts.
#pragma once

#include <numeric>

#include "bit_identical/bits.h"
#include "dtensor/moe.h"
#include "dtensor/parallelize.h"
#include "support/draws.h"

namespace dtensor::test::packed_layers {

inline constexpr std::int64_t kHidden = 24, kFfn = 40, kBlock = 8, kBatch = 4, kTokens = 30;

struct Case {
  MoeOptions options;
  DispatchKind dispatch = DispatchKind::all_to_all;
  CapacityOptions capacity = {};
  std::uint64_t seed = 1;
  bool trains = true;
  std::vector<std::int64_t> parts = {kBatch};  // sequences of each microbatch
  bool returns_loss = true;                    // reported losses of parts compose for powers of two of tokens only
  std::int64_t absent_after = 0;               // not 0: after so many sequences expert 2 has no rows; expert 3 has none
};

struct Layout {
  Shape shape = {1, 1};  // dense: shard x tp
  std::int64_t ep = 1, etp = 1;
  Placements tokens = {Replicate(), Replicate()};
  bool units = false;
};

inline std::string text_of(const Layout& l) {
  return c10::str(l.shape, " ep ", l.ep, " etp ", l.etp, ", tokens ", to_string(l.tokens), l.units ? ", units" : "");
}

inline MoeOptions options_of(nn::Activation activation = nn::Activation::swiglu) {
  MoeOptions o{.hidden = kHidden, .ffn = kFfn, .tensor = at::TensorOptions(at::kFloat)};
  o.router.experts = 4, o.router.normalize = true;
  o.experts.activation = activation;
  return o;
}

inline void fill(MixtureOfExperts& layer, std::uint64_t seed) {
  Draw draw(seed);
  const at::NoGradGuard no_grad;
  for (const auto& [name, p] : layer.named_parameters()) {
    p->copy_(draw.normal(p->sizes().vec(), at::kFloat).mul_(0.3).to(p->scalar_type()));
  }
}

inline void place(MixtureOfExperts& layer, const DeviceMesh& dense, const Layout& layout) {
  const auto edp = dense.size() / layout.ep / layout.etp;
  apply_expert_parallel(layer, dense.view({edp, layout.ep, layout.etp}, {"edp", "ep", "etp"}));
  NamedTensors rest;
  for (const auto& item : layer.named_parameters()) {
    if (!is_dtensor(*item.second)) rest.push_back(item);
  }
  nn::distribute(rest, dense, [](const auto&, const auto&) { return Placements(2); });
  if (layout.units) fully_shard(layer, dense, {.shard_axes = {"shard"}});
}

inline at::Tensor values_of(const Case& c, Draw& draw) {
  const auto rows = std::accumulate(c.parts.begin(), c.parts.end(), std::int64_t{0});
  auto values = draw.normal({rows, kTokens, kHidden}, c.options.tensor.dtype().toScalarType());
  if (c.absent_after == 0) return values;
  values.select(2, 0).fill_(-1).narrow(0, 0, c.absent_after).fill_(1);
  values.select(2, 1).fill_(1);
  return values;
}

// Products of experts 2 and 3 with the gate are the first two features alone; others are within about 4.
inline void make_experts_absent(const at::Tensor& gate) {
  const at::NoGradGuard no_grad;
  gate.narrow(1, 0, 2).zero_();
  gate.narrow(0, 2, 2).zero_();
  gate[2][0] = 6, gate[3][1] = -8;
}

inline void check_absent(const MixtureOfExperts& layer, bool first) {
  const auto& load = layer.stats().load;
  TORCH_CHECK(load[3].item<std::int64_t>() == 0 && (first || load[2].item<std::int64_t>() == 0), "loads ", load);
}

// Results of all parts, gradients of tokens, the sum of losses, gradients of parameters, and the balancer's bias.
inline Tensors run_layer(const DeviceMesh& dense, const Case& c, const Layout& layout) {
  Draw draw(c.seed + 1);
  const auto values = values_of(c, draw), grads = draw.normal(values.sizes().vec(), values.scalar_type());
  auto options = c.options;
  options.router.batch_tokens = values.size(0) * kTokens;
  MixtureOfExperts layer(options);
  layer.train(c.trains);
  layer.set_dispatch(c.dispatch, c.capacity);
  fill(layer, c.seed);
  if (c.absent_after > 0) make_experts_absent(layer.gate.weight);
  place(layer, dense, layout);
  const BitIdentical scope(kBlock);
  Tensors made_of_parts, grads_of_parts;
  at::Tensor loss;
  std::int64_t first = 0;
  for (const auto count : c.parts) {
    const auto part = [&](const at::Tensor& t) {
      return distribute_tensor(t.narrow(0, first, count).contiguous(), dense, layout.tokens);
    };
    const at::Tensor x = part(values).requires_grad_();
    const at::Tensor tokens = x * 1;
    const auto made = layer.run(tokens);
    TORCH_CHECK(DTensor(made.y).placements() == DTensor(tokens).placements(), "expected the placements of the tokens");
    if (c.absent_after > 0) check_absent(layer, first == 0);
    auto total = (made.y * part(grads)).sum();
    if (made.loss.defined()) {
      total = total + made.loss;
      loss = loss.defined() ? loss + made.loss.detach() : made.loss.detach();
    }
    total.backward();
    made_of_parts.push_back(full_of(made.y.detach())), grads_of_parts.push_back(full_of(x.grad()));
    first += count;
  }
  Tensors results{at::cat(made_of_parts), at::cat(grads_of_parts)};
  if (loss.defined() && c.returns_loss) results.push_back(full_of(loss));
  for (const auto& [name, p] : layer.named_parameters()) results.push_back(full_of(p->grad()));
  if (layer.balancer() != nullptr) {
    update_load_balancers(layer, dense.communicator());
    results.push_back(full_of(layer.balancer()->bias).clone());
  }
  return results;
}

inline Tensors run_layout(const Case& c, const Layout& layout, int threads = 1) {
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

inline void require_layout(const Case& c, const Layout& layout, const Tensors& expected) {
  require_same_bits(run_layout(c, layout), expected, text_of(layout));
}

inline Case drawn_case() {
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

inline Layout drawn_layout() {
  Layout l{one_of<Shape>({{1, 2}, {2, 1}, {2, 2}, {4, 1}, {1, 4}, {3, 1}})};
  l.etp = one_of<std::int64_t>({1, l.shape[1]});
  const auto rest = count(l.shape) / l.etp;
  l.ep = rest % 2 == 0 ? one_of<std::int64_t>({1, 2, rest}) : 1;
  const auto token = [] { return one_of<Placement>({Replicate(), Shard(0), Shard(1), Shard(2), ZigzagShard(1)}); };
  l.tokens = {token(), token()};
  l.units = one_of({true, false});
  return l;
}

}  // namespace dtensor::test::packed_layers
