// Attention layers whose parameters fully_shard splits over shard and cp, alone and as pipeline stages. Random meshes,
// lengths, heads, masks and sequence placements give the loss and gradients of one device.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "attention/cases.h"
#include "dtensor/fully_shard.h"
#include "dtensor/pipeline.h"
#include "support/draws.h"

namespace dtensor::test {
namespace {

using pipeline::Tensors;

// x + attention(x) for x of sizes [batch, sequence, heads * features].
struct Layer {
  at::Tensor q, k, v, o, sinks;

  Layer(const Case& c, Draw& draw) {
    const auto hidden = c.heads * c.features, keys = c.groups * c.features;
    q = draw.normal({hidden, hidden}), o = draw.normal({hidden, hidden});
    k = draw.normal({keys, hidden}), v = draw.normal({keys, hidden}), sinks = draw.normal({c.heads});
    const double scale =
        1 / std::sqrt(static_cast<double>(hidden));  // keeps the scale of results, so that rounding errors stay small
    for (auto& [name, t] : list(c, "")) *t = (*t * scale).requires_grad_();
  }
  NamedTensors list(const Case& c, const std::string& prefix) {
    NamedTensors all{{prefix + "q", &q}, {prefix + "k", &k}, {prefix + "v", &v}, {prefix + "o", &o}};
    if (c.options.sinks.defined()) all.emplace_back(prefix + "sinks", &sinks);
    return all;
  }
  template <class Attend>
  at::Tensor forward(const Case& c, const at::Tensor& x, const Attend& attend) const {
    const auto heads = [&](const at::Tensor& w) {
      return at::linear(x, w).unflatten(2, {w.size(0) / c.features, c.features}).transpose(1, 2);
    };
    std::vector<at::Tensor> in{heads(q), heads(k), heads(v)};
    if (c.options.sinks.defined()) in.push_back(sinks);
    return x + at::linear(attend(in).transpose(1, 2).flatten(2), o);
  }
};

at::Tensor mean_loss(const Tensors& outputs, const Tensors& targets) {
  return (outputs[0] - targets[0]).square().mean();
}

// Mesh axes: pp, replicate, shard, cp.
struct Trial {
  Case c;
  int microbatches = 1;
  bool reshard = true;
  Placement sequence = Shard(1);
};

template <class T>
T one_of(Draw& draw, const std::vector<T>& values) {
  return values[static_cast<std::size_t>(draw.integer(0, std::ssize(values) - 1))];
}

Trial draw_trial(std::uint64_t seed) {
  Draw draw(seed);
  Trial t;
  Case& c = t.c;
  c.seed = seed % 1000;
  c.mesh = one_of<Shape>(draw, {{1, 1, 2, 2},
                                {1, 1, 2, 3},
                                {1, 1, 3, 2},
                                {1, 2, 1, 2},
                                {1, 2, 2, 2},
                                {1, 1, 1, 4},
                                {2, 1, 1, 2},
                                {2, 1, 1, 3},
                                {2, 1, 2, 2},
                                {2, 1, 1, 4},
                                {2, 2, 1, 2}});
  c.keys = c.queries = draw.integer(0, 3) > 0 ? draw.integer(1, 9) : one_of<std::int64_t>(draw, {62, 63, 64});
  c.heads = one_of<std::int64_t>(draw, {1, 3, 8});
  c.groups = one_of<std::int64_t>(draw, {1, 2, 8});
  if (c.heads % c.groups != 0) c.groups = draw.coin() ? c.heads : 1;
  c.features = c.values = draw.integer(1, 4);
  t.microbatches = c.mesh[0] > 1 ? static_cast<int>(draw.integer(1, 3)) : 1;
  c.batch = t.microbatches + draw.integer(0, 3);
  c.by_aten = draw.coin();
  c.options.causal = draw.integer(0, 3) > 0;
  c.strategy = static_cast<AttentionStrategy>(draw.integer(0, 3));
  t.reshard = draw.coin();
  t.sequence = draw.coin() ? ZigzagShard(1) : Shard(1);
  if (c.by_aten) return t;
  if (draw.coin()) c.options.window = draw.integer(1, c.keys);
  if (draw.coin()) c.options.sinks = at::ones({c.heads});  // a marker that the case has sinks
  if (draw.coin()) c.options.documents = {0};
  if (c.keys > 2 && !c.options.documents.empty() && draw.coin()) c.options.documents.push_back(c.keys / 2);
  return t;
}

struct Found {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;
};

struct Model {
  Draw draw;
  Layer first, second;
  at::Tensor x, target;

  explicit Model(const Case& c)
      : draw(c.seed),
        first(c, draw),
        second(c, draw),
        x(draw.normal({c.batch, c.queries, c.heads * c.features})),
        target(draw.normal(x.sizes().vec())) {}
  NamedTensors list(const Case& c) {
    auto all = first.list(c, "first.");
    for (auto& item : second.list(c, "second.")) all.push_back(std::move(item));
    return all;
  }
};

Found one_device(const Case& c) {
  Model model(c);
  const auto attend = [&](const std::vector<at::Tensor>& in) { return expected_result(c, in, {}); };
  const auto y = model.second.forward(c, model.first.forward(c, model.x, attend), attend);
  std::vector<at::Tensor> leaves;
  for (const auto& [name, t] : model.list(c)) leaves.push_back(*t);
  const auto loss = mean_loss({y}, {model.target});
  return {loss.detach(), torch::autograd::grad({loss}, leaves)};
}

void compare(const Trial& t, const at::Tensor& loss, const NamedTensors& parameters,
             const std::vector<at::Tensor>& wanted, const at::Tensor& wanted_loss) {
  require(is_dtensor(loss) ? DTensor(loss.detach()).full_tensor() : loss, wanted_loss, t.c, "the loss");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto grad = parameters[i].second->grad();
    TORCH_CHECK(grad.defined(), "no gradient of ", parameters[i].first, ": ", t.c.str());
    require(DTensor(grad).full_tensor(), wanted[i], t.c, "the gradient of " + parameters[i].first);
  }
}

FsdpOptions how(const Trial& t) { return {.reshard_after_forward = t.reshard, .shard_axes = {"shard", "cp"}}; }

// Axes replicate and shard split the batch; cp splits the sequence.
Placements batch_split(const Trial& t) { return {Shard(0), Shard(0), t.sequence}; }

auto attend_with(const Case& c) {
  return [&c](const std::vector<at::Tensor>& in) {
    const AttentionStrategyScope scope(c.strategy);
    return attend(c, in, {});
  };
}

void check_units(const Trial& t, Communicator world, const Found& wanted) {
  const auto mesh =
      init_device_mesh(world, at::kCPU, {t.c.mesh[1], t.c.mesh[2], t.c.mesh[3]}, {"replicate", "shard", "cp"});
  Model model(t.c);
  fully_shard(model.first.list(t.c, "first."), mesh, how(t));
  fully_shard(model.second.list(t.c, "second."), mesh, how(t));
  const auto place = [&](const at::Tensor& x) { return distribute_tensor(x, mesh, batch_split(t)); };
  const auto attend = attend_with(t.c);
  const auto y = model.second.forward(t.c, model.first.forward(t.c, place(model.x), attend), attend);
  const auto loss = mean_loss({y}, {place(model.target)});
  loss.backward();
  compare(t, loss, model.list(t.c), wanted.gradients, wanted.loss);
}

void check_stages(const Trial& t, Communicator world, const Found& wanted) {
  const auto mesh = init_device_mesh(world, at::kCPU, t.c.mesh, {"pp", "replicate", "shard", "cp"});
  pipeline::Pipeline stages(mesh, pipeline::make_schedule("1f1b", 2, t.microbatches), mean_loss);
  const int mine = stages.stages().front();
  const auto inside = stages.stage_mesh();
  Model model(t.c);
  Layer& layer = mine == 0 ? model.first : model.second;
  const auto own = layer.list(t.c, mine == 0 ? "first." : "second.");
  fully_shard(own, inside, how(t));
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : own) parameters.push_back(*parameter);
  const auto attend = attend_with(t.c);
  stages.set_stage(
      mine, [&](const Tensors& in) { return Tensors{layer.forward(t.c, in[0], attend)}; }, parameters);
  const auto pieces = [&](const at::Tensor& full) {
    std::vector<Tensors> all;
    for (const auto& part : pipeline::microbatches(full, t.microbatches)) {
      all.push_back({distribute_tensor(part, inside, batch_split(t))});
    }
    return all;
  };
  const auto step = stages.step(mine == 0 ? pieces(model.x) : std::vector<Tensors>{},
                                mine == 1 ? pieces(model.target) : std::vector<Tensors>{});
  const auto half = static_cast<std::ptrdiff_t>(wanted.gradients.size() / 2);
  const auto begin = wanted.gradients.begin() + mine * half;
  compare(t, step.loss, own, {begin, begin + half}, wanted.loss);
}

void check(const Trial& t) {
  const auto wanted = one_device(t.c);
  run_local(count(t.c.mesh), [&](Communicator world) {
    t.c.mesh[0] > 1 ? check_stages(t, world, wanted) : check_units(t, world, wanted);
  });
}

void any_layers_have_the_gradients_of_one_device() {
  const auto t = draw_trial(*rc::gen::arbitrary<std::uint64_t>());
  RC_LOG() << t.c.str() << " " << to_string(Placements{t.sequence}) << ", " << t.microbatches << " microbatches";
  check(t);
}

TEST(AttentionLayers, UnitsAndStagesEqualOneDevice) {
  check_property("layers of attention on split sequences", any_layers_have_the_gradients_of_one_device, 40);
}

}  // namespace
}  // namespace dtensor::test
