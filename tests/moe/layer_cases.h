// Random cases of the layer, run on one device and on a mesh: routers, dispatchers, meshes, placements and batches,
// some of which leave experts or ranks without tokens.
#pragma once

#include "dtensor/moe/layer.h"

#include <gtest/gtest.h>

#include "moe/dispatch/permute.h"
#include "support/ranks.h"

namespace dtensor::test::layer {

struct Case {
  MoeOptions options = {};
  DispatchKind kind = DispatchKind::all_to_all;
  CapacityOptions capacity = {};
  Shape dense = {}, sparse = {};  // dp x tp, edp x ep x etp
  bool ep_outside = false;        // ep x edp x etp: the ranks of ep are not adjacent in the batch
  Placement tp = {};              // placement of the input on tp
  Shape input = {};
  std::uint64_t seed = 0;

  int ranks() const { return count(dense); }
  std::string str() const {
    const auto& r = options.router;
    return c10::str("seed ", seed, ": dense ", dense, " sparse ", sparse, ep_outside ? " ep outside" : "", " tp ",
                    tp.str(), " input ", input, " dispatch ", static_cast<int>(kind), " capacity ", capacity.factor,
                    "/", static_cast<int>(capacity.drop), " experts ", r.experts, " top ", r.top_k, " choice ",
                    static_cast<int>(r.choice), " groups ", r.groups, "/", r.top_groups, " weighs before ",
                    options.score_before_experts, " shared gate ", options.shared_gate, " losses ", r.aux_loss, " ",
                    r.sequence_aux_loss, " ", r.z_loss);
  }
};

inline RouterOptions draw_router(Draw& draw, std::int64_t multiple) {
  RouterOptions r;
  r.experts = multiple * draw.integer(1, 2);
  r.top_k = draw.integer(1, std::min<std::int64_t>(3, r.experts));
  r.score = draw.coin() ? RouterScore::softmax : RouterScore::sigmoid;
  r.normalize = draw.coin();
  r.scale = draw.coin() ? 1 : 1.5;
  if (r.experts % 2 == 0 && draw.integer(0, 3) == 0) {
    r.groups = 2;
    r.top_groups = r.top_k <= r.experts / 2 ? 1 : 2;
  }
  const auto pick = draw.integer(0, 5);
  r.choice = pick == 0 ? RouterChoice::experts : pick == 1 ? RouterChoice::round_robin : RouterChoice::tokens;
  if (r.choice != RouterChoice::experts) {
    r.aux_loss = draw.coin() ? 0.3 : 0;
    r.sequence_aux_loss = draw.coin() ? 0.2 : 0;
  }
  r.z_loss = draw.coin() ? 0.1 : 0;
  return r;
}

struct Meshes {
  Shape dense, sparse;
};
inline const std::vector<Meshes>& all_meshes() {
  static const std::vector<Meshes> all = {{{1, 1}, {1, 1, 1}}, {{2, 1}, {1, 2, 1}}, {{3, 1}, {1, 3, 1}},
                                          {{2, 1}, {2, 1, 1}}, {{4, 1}, {2, 2, 1}}, {{2, 2}, {1, 4, 1}},
                                          {{2, 2}, {1, 2, 2}}, {{2, 2}, {2, 1, 2}}, {{2, 2}, {2, 2, 1}},
                                          {{1, 2}, {1, 1, 2}}, {{4, 2}, {2, 2, 2}}};
  return all;
}

inline Case draw_case(std::uint64_t seed) {
  Draw draw(seed);
  Case c{.seed = seed};
  const auto meshes = all_meshes()[draw.integer(0, static_cast<std::int64_t>(all_meshes().size()) - 1)];
  c.dense = meshes.dense;
  c.sparse = meshes.sparse;
  c.options.hidden = 4;
  c.options.ffn = 6;
  c.options.tensor = at::kDouble;
  c.options.router = draw_router(draw, c.sparse[1] * (c.sparse[0] == 2 && draw.coin() ? 2 : 1));
  c.options.experts.activation = static_cast<ExpertActivation>(draw.integer(0, 4));
  c.options.shared_ffn = draw.coin() ? 3 : 0;
  c.kind = c.options.router.choice == RouterChoice::experts ? DispatchKind::all_to_all
                                                            : static_cast<DispatchKind>(draw.integer(0, 2));
  if (c.kind == DispatchKind::capacity) {
    c.capacity = {draw.coin() ? 0.7 : 1.2,
                  draw.coin() ? CapacityOptions::Drop::position : CapacityOptions::Drop::probability};
  }
  c.options.score_before_experts = draw.integer(0, 3) == 0;
  c.tp = draw.coin() ? Replicate() : Shard(draw.integer(0, 1));
  c.input = {draw.integer(1, 5), draw.integer(1, 4), 4};
  const bool same_tokens = c.tp.is_replicate() && c.sparse[2] == c.dense[1];
  if (c.options.router.choice == RouterChoice::round_robin && (c.tp.is_replicate() || c.tp.dim() == 0)) {
    c.input[0] = c.dense[0] * (same_tokens ? 1 : c.dense[1]) * draw.integer(1, 2);
    c.kind = draw.coin() ? DispatchKind::equal : c.kind;
    if (c.kind == DispatchKind::equal) c.capacity = {};
  }
  c.ep_outside = draw.coin();
  if (c.kind == DispatchKind::all_to_all && draw.coin()) c.kind = DispatchKind::padded;
  c.options.shared_gate = c.options.shared_ffn > 0 && draw.coin();
  return c;
}

struct Outcome {
  at::Tensor y, loss, dx, counts;
  std::int64_t dropped = 0;
  std::vector<at::Tensor> gradients;
};

struct Values {
  at::Tensor x, cotangent;
  std::vector<at::Tensor> parameters;
};

inline Values draw_values(const Case& c) {
  Draw draw(c.seed + 1);
  Values v{draw.normal(c.input), draw.normal(c.input), {}};
  MixtureOfExperts layer(c.options);
  for (const auto& [name, p] : layer.named_parameters()) v.parameters.push_back(draw.normal(p->sizes().vec()));
  return v;
}

inline void set_parameters(MixtureOfExperts& layer, const Values& v) {
  std::size_t i = 0;
  for (const auto& [name, p] : layer.named_parameters()) *p = v.parameters[i++].clone().requires_grad_();
}

inline at::Tensor full(const at::Tensor& t) { return is_dtensor(t) ? DTensor(t.detach()).full_tensor() : t.detach(); }

inline Outcome run_layer(MixtureOfExperts& layer, const at::Tensor& x, const at::Tensor& cotangent) {
  const auto out = layer.run(x);
  auto total = (out.y * cotangent).sum();
  if (out.loss.defined()) total = total + out.loss;
  total.backward();
  Outcome o{full(out.y),           out.loss.defined() ? full(out.loss) : at::zeros({}, at::kDouble),
            full(x.grad()),        layer.stats().load.clone(),
            layer.stats().dropped, {}};
  for (const auto& p : layer.parameters()) {
    TORCH_CHECK(p.grad().defined(), "a parameter has no gradient");
    o.gradients.push_back(full(p.grad()));
  }
  return o;
}

inline Outcome run_regular(const Case& c, const Values& v) {
  MixtureOfExperts layer(c.options);
  set_parameters(layer, v);
  layer.set_dispatch(c.kind, c.capacity);
  return run_layer(layer, v.x.clone().requires_grad_(), v.cotangent);
}

inline void place(MixtureOfExperts& layer, const Case& c, const DeviceMesh& dense) {
  const auto& s = c.sparse;
  apply_expert_parallel(
      layer, c.ep_outside ? dense.view({s[1], s[0], s[2]}, {"ep", "edp", "etp"}) : dense.view(s, {"edp", "ep", "etp"}));
  NamedTensors rest;
  for (const auto& item : layer.named_parameters()) {
    if (!is_dtensor(*item.second) && c.seed % 3 != 0) rest.push_back(item);
  }
  nn::distribute(rest, dense, [](const auto&, const auto&) { return Placements{Shard(0).as_storage(), Replicate()}; });
}

inline Outcome run_on(const Case& c, const Values& v, const Communicator& world) {
  const auto dense = init_device_mesh(world, at::kCPU, c.dense, {"dp", "tp"});
  MixtureOfExperts layer(c.options);
  set_parameters(layer, v);
  place(layer, c, dense);
  layer.set_dispatch(c.kind, c.capacity);
  const auto put = [&](const at::Tensor& t) { return distribute_tensor(t.clone(), dense, {Shard(0), c.tp}); };
  auto outcome = run_layer(layer, put(v.x).requires_grad_(), put(v.cotangent));
  // Replicated tokens on tp are counted once per rank of tp.
  const bool repeated = c.tp.is_replicate() && c.sparse[2] == 2 && c.dense[1] == 2;
  auto sums = at::cat({outcome.counts, at::tensor({outcome.dropped})});
  world.all_reduce(sums, ReduceOp::sum).wait();
  if (repeated) sums = sums.div(2, "floor");
  outcome.counts = sums.narrow(0, 0, outcome.counts.size(0));
  outcome.dropped = sums[-1].item<std::int64_t>();
  return outcome;
}

inline void expect_equal(const Outcome& got, const Outcome& wanted, const Case& c) {
  expect_close(got.y, wanted.y, c.str() + " y");
  expect_close(got.loss, wanted.loss, c.str() + " loss");
  expect_close(got.dx, wanted.dx, c.str() + " dx");
  EXPECT_TRUE(at::equal(got.counts, wanted.counts)) << c.str() << "\n" << got.counts << wanted.counts;
  EXPECT_EQ(got.dropped, wanted.dropped) << c.str();
  for (std::size_t i = 0; i < wanted.gradients.size(); ++i) {
    expect_close(got.gradients[i], wanted.gradients[i], c10::str(c.str(), " gradient ", i));
  }
}

}  // namespace dtensor::test::layer
