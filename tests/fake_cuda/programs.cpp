#include "fake_cuda/programs.h"

#include "attention/cases.h"
#include "moe/small_layer.h"
#include "other_device/step.h"
#include "pipeline/trials.h"

namespace dtensor::test::fake_cuda {
namespace {

template <class T>
T one_of(Draw& draw, const std::vector<T>& values) {
  return values[static_cast<std::size_t>(draw.integer(0, std::ssize(values) - 1))];
}

DeviceMesh mesh_of(const Communicator& world, const Shape& shape, const std::vector<std::string>& names) {
  return init_device_mesh(world, at::kCUDA, shape, names);
}

std::string name_of(const std::string& kind, const Shape& shape, std::uint64_t seed) {
  return c10::str(kind, " on [", c10::Join(", ", shape), "], seed ", seed);
}

void expect_same_gradients(Net& net, Net& regular) {
  for (const auto& name : net.names) {
    ASSERT_EQ(net.p[name].grad().defined(), regular.p[name].grad().defined()) << name;
    if (regular.p[name].grad().defined()) expect_close(host_value(net.p[name].grad()), regular.p[name].grad(), name);
  }
}

}  // namespace

Program fsdp_program(std::uint64_t seed) {
  Draw draw(seed);
  const auto shape = one_of<Shape>(draw, {{1, 2}, {2, 1}, {1, 3}, {2, 2}, {1, 4}, {2, 3}, {2, 4}, {1, 8}});
  Training how;
  how.seed = seed;
  how.steps = 2;
  how.accumulate = static_cast<int>(draw.integer(1, 2));
  how.replicas_only = draw.coin();
  how.stored = draw.integer(0, 3) == 0 ? Stored::by_placements : Stored::in_units;
  how.options.reshard_after_forward = draw.coin();
  how.options.cpu_offload = how.stored == Stored::in_units && draw.integer(0, 3) == 0;
  how.options.prefetch_bytes = one_of<std::optional<std::int64_t>>(draw, {std::nullopt, 0, 400, 100000});
  return {name_of("FSDP", shape, seed), count(shape), [=](const Communicator& world) {
            expect_trains(mesh_of(world, shape, {"replicate", "shard"}), how);
          }};
}

Program tensor_parallel_program(std::uint64_t seed) {
  Draw draw(seed);
  const auto shape = one_of<Shape>(draw, {{1, 2}, {1, 3}, {2, 2}, {1, 4}, {2, 4}, {1, 8}});
  return {name_of("tensor parallelism", shape, seed), count(shape), [=](const Communicator& world) {
            const auto mesh = mesh_of(world, shape, {"data", "tp"});
            Net regular(seed), net(seed);
            for (auto& [name, t] : net.p) {
              const bool split = name == "a.w" || name == "a.b" || name == "w2" || name == "emb";
              t = distribute_tensor(t.detach(), mesh, {Replicate(), split ? Placement(Shard(0)) : Replicate()})
                      .requires_grad_();
            }
            for (std::uint64_t step = 0; step < 2; ++step) {
              const auto d = data(regular, seed + step, 5);
              const auto place = [&](const at::Tensor& t) {
                return distribute_tensor(t, mesh, {Shard(0), Replicate()});
              };
              const auto expected = regular.loss(d.x, d.ids), loss = net.loss(place(d.x), place(d.ids));
              expected.backward();
              loss.backward();
              expect_close(host_value(loss), expected.detach(), "loss");
            }
            expect_same_gradients(net, regular);
          }};
}

Program pipeline_program(std::uint64_t seed) {
  Draw draw(seed);
  pipelines::Trial trial;
  trial.schedule = one_of(draw, pipeline::schedule_names());
  trial.ranks = static_cast<int>(draw.integer(2, 4));
  trial.microbatches = trial.ranks * static_cast<int>(draw.integer(1, 2));
  trial.rows = trial.microbatches * 4;
  const auto inside = static_cast<pipelines::StageParallelism>(draw.integer(0, 3));
  if (trial.ranks <= 4) trial.inside = inside;
  trial.recompute = draw.coin();
  trial.seed = seed;
  trial.device = at::kCUDA;
  return {trial.str(), trial.world_size(),
          [trial, reference = pipelines::one_device(trial)](const Communicator& world) {
            pipelines::run_trial(trial, reference, world);
          }};
}

Program context_parallel_program(std::uint64_t seed) {
  Draw draw(seed);
  Case c;
  c.seed = seed;
  c.mesh = one_of<Shape>(draw, {{2}, {3}, {4}, {8}, {2, 2}});
  c.by_aten = false;
  c.keys = c.queries = draw.integer(8, 40);
  c.heads = 8;
  c.groups = one_of<std::int64_t>(draw, {2, 8});
  // Half types with 8 features have a flash kernel, so keys pass around; others gather them.
  c.dtype = one_of<at::ScalarType>(draw, {at::kDouble, at::kHalf, at::kBFloat16});
  c.features = c.values = one_of<std::int64_t>(draw, {4, 8, 8});
  c.options.causal = draw.coin();
  if (draw.coin()) c.options.window = draw.integer(1, 12);
  c.strategy = static_cast<AttentionStrategy>(draw.integer(0, 3));
  const Placement split = draw.coin() ? Placement(Shard(2)) : Placement(ZigzagShard(2));
  for (auto& where : c.where) {
    where = Placements(c.mesh.size(), split);
    if (c.mesh.size() == 2) where[0] = Shard(0);
  }
  return {c.str(), count(c.mesh), [c](const Communicator& world) {
            std::vector<std::string> names = {"data", "sequence"};
            if (c.mesh.size() == 1) names = {"sequence"};
            check_case(c, mesh_of(world, c.mesh, names));
          }};
}

Program expert_parallel_program(std::uint64_t seed) {
  Draw draw(seed);
  const auto ranks = one_of<std::int64_t>(draw, {2, 4});
  const auto kind = one_of<DispatchKind>(draw, {DispatchKind::all_to_all, DispatchKind::equal});
  auto options = small_options();
  options.router.choice = kind == DispatchKind::equal ? RouterChoice::round_robin : RouterChoice::tokens;
  options.scale_expert_gradients = draw.coin();
  return {name_of("expert parallelism", {ranks}, seed), static_cast<int>(ranks), [=](const Communicator& world) {
            const auto mesh = mesh_of(world, {ranks}, {"ep"});
            MixtureOfExperts layer(options), regular(options);
            fill(layer, seed);
            fill(regular, seed);
            apply_expert_parallel(layer, mesh);
            nn::distribute({{"gate.weight", &layer.gate.weight}}, mesh,
                           [](const auto&, const auto&) { return Placements{Replicate()}; });
            layer.set_dispatch(kind);
            const auto values = Draw(seed + 1).normal({8, 8});
            const auto x = distribute_tensor(values, mesh, {Shard(0)}).requires_grad_();
            const auto expected_x = values.clone().requires_grad_();
            const auto y = layer.forward(x), expected = regular.forward(expected_x);
            y.square().sum().backward();
            expected.square().sum().backward();
            expect_close(host_value(y), expected.detach(), "y");
            expect_close(host_value(x.grad()), expected_x.grad(), "gradient of x");
          }};
}

}  // namespace dtensor::test::fake_cuda
