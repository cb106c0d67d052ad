// A model cut into stages, trained by a pipeline on the ranks of a world and compared with one device.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dtensor/checkpoint_activations.h"
#include "dtensor/fully_shard.h"
#include "dtensor/pipeline.h"
#include "dtensor/random.h"
#include "support/ranks.h"

namespace dtensor::test::pipelines {

using pipeline::Pipeline;
using pipeline::Tensors;

constexpr std::int64_t kHidden = 6, kClasses = 5;

// A residual network of two-matrix layers, with a skip connection from the first layer to the last. It uses ATen only,
// so it runs on any tensors. Each layer has one unused output.
struct Model {
  std::vector<std::array<at::Tensor, 2>> layers;
  at::Tensor head;

  Model(std::uint64_t seed, int count) {
    Draw draw(seed);
    for (int i = 0; i < count; ++i)
      layers.push_back({draw.normal({kHidden, 2 * kHidden}) * 0.3, draw.normal({2 * kHidden, kHidden}) * 0.3});
    head = draw.normal({kHidden, kClasses});
  }
  std::vector<at::Tensor*> parameters_of(int layer) {
    std::vector<at::Tensor*> result{&layers[static_cast<std::size_t>(layer)][0],
                                    &layers[static_cast<std::size_t>(layer)][1]};
    if (layer + 1 == static_cast<int>(layers.size())) result.push_back(&head);
    return result;
  }
  static at::Tensor block(const std::array<at::Tensor, 2>& w, const at::Tensor& x) {
    return x + at::mm(at::gelu(at::mm(x, w[0])), w[1]);
  }
  // Passes the skip connection to the next layer; the last layer adds it and classifies.
  Tensors run(int layer, const Tensors& in, bool recompute, double dropout) const {
    const auto& w = layers[static_cast<std::size_t>(layer)];
    const auto call = [&w, dropout](const at::Tensor& x) { return at::dropout(block(w, x), dropout, dropout > 0); };
    const at::Tensor x = recompute ? checkpoint(call, in[0]) : call(in[0]);
    const at::Tensor skip = layer == 0 ? x * 2 : in[1];
    if (layer + 1 < static_cast<int>(layers.size())) return {x, skip, x * 3};
    return {at::mm(x + skip, head)};
  }
};

inline at::Tensor mean_loss(const Tensors& outputs, const Tensors& targets) {
  return at::cross_entropy_loss(outputs[0], targets[0], {}, at::Reduction::Mean, -100);
}

struct Reference {
  double loss;
  std::vector<at::Tensor> gradients;  // Per layer, then the head.
};

// Runs on a mesh of one rank, so that random numbers are those of the library. Gradients are of loss times `scale`.
inline Reference one_device(std::uint64_t seed, int layers, const at::Tensor& x, const at::Tensor& targets,
                            double dropout, double scale) {
  Reference reference{};
  run_local(1, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {1}, {"one"});
    manual_seed(mesh, seed);
    Model model(seed, layers);
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < layers; ++i) {
      for (at::Tensor* p : model.parameters_of(i)) {
        *p = distribute_tensor(*p, mesh, {Replicate()});
        parameters.push_back(p->requires_grad_());
      }
    }
    Tensors values{distribute_tensor(x, mesh, {Replicate()})};
    for (int i = 0; i < layers; ++i) values = model.run(i, values, false, dropout);
    const at::Tensor loss = mean_loss(values, {distribute_tensor(targets, mesh, {Replicate()})});
    (loss * scale).backward();
    reference.loss = loss.item<double>();
    for (const at::Tensor& p : parameters) reference.gradients.push_back(DTensor(p.grad()).to_local());
  });
  return reference;
}

enum class StageParallelism { nothing, replicate, fsdp, tp, hsdp };

struct Trial {
  std::string schedule;
  int ranks, microbatches, rows;
  StageParallelism inside = StageParallelism::nothing;
  bool recompute = false, frozen = false;
  double dropout = 0, scale = 1;  // Dropout needs DTensors: regular tensors of all ranks share one generator.
  std::uint64_t seed = 1;
  c10::DeviceType device = at::kCPU;
  int world_size() const {
    return ranks * (inside == StageParallelism::nothing ? 1 : inside == StageParallelism::hsdp ? 4 : 2);
  }
  std::string str() const {
    return c10::str(schedule, " on ", ranks, " ranks, ", microbatches, " microbatches of ", rows, " rows, inside ",
                    static_cast<int>(inside), recompute ? ", recomputed" : "", frozen ? ", frozen" : "", ", dropout ",
                    dropout, ", scale ", scale, ", seed ", seed);
  }
};

inline void place(Model& model, int layer, const DeviceMesh& slice, StageParallelism inside) {
  std::vector<at::Tensor*> parameters = model.parameters_of(layer);
  if (inside == StageParallelism::fsdp || inside == StageParallelism::hsdp) {
    NamedTensors named;
    for (at::Tensor* p : parameters) {
      p->requires_grad_();
      named.emplace_back(c10::str(layer, ".", named.size()), p);
    }
    fully_shard(named, slice, {.shard_axes = {"inner"}, .replicate_axis = "outer"});
    return;
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (slice) {
      const bool tp = inside == StageParallelism::tp && i < 2;
      const Placement placement = tp ? Placement(Shard(i == 0 ? 1 : 0)) : Placement(Replicate());
      *parameters[i] = distribute_tensor(*parameters[i], slice, {placement});
    }
    parameters[i]->requires_grad_();
  }
}

inline at::Tensor on_slice(const at::Tensor& regular, const DeviceMesh& slice, StageParallelism inside,
                           c10::DeviceType device) {
  if (!slice) return regular.to(device);
  if (inside == StageParallelism::hsdp) return distribute_tensor(regular, slice, {Shard(0), Shard(0)});
  const bool split = inside == StageParallelism::fsdp || inside == StageParallelism::replicate;
  return distribute_tensor(regular, slice, {split ? Placement(Shard(0)) : Placement(Replicate())});
}

inline DeviceMesh mesh_of(const Trial& trial, const Communicator& world) {
  if (trial.inside == StageParallelism::nothing) return init_device_mesh(world, trial.device, {trial.ranks}, {"pp"});
  if (trial.inside != StageParallelism::hsdp)
    return init_device_mesh(world, trial.device, {trial.ranks, 2}, {"pp", "inner"});
  return init_device_mesh(world, trial.device, {trial.ranks, 2, 2}, {"pp", "outer", "inner"});
}

// One target is ignored.
inline std::pair<at::Tensor, at::Tensor> batch_of(const Trial& trial) {
  Draw draw(trial.seed + 100);
  const at::Tensor x = draw.normal({trial.rows, kHidden});
  at::Tensor targets = draw.integers({trial.rows}, kClasses);
  targets[0] = -100;
  return {x, targets};
}

inline Reference one_device(const Trial& trial) {
  const auto schedule = pipeline::make_schedule(trial.schedule, trial.ranks, trial.microbatches);
  const auto [x, targets] = batch_of(trial);
  return one_device(trial.seed, schedule.stages() + 1, x, targets, trial.dropout, trial.scale);
}

inline void run_trial(const Trial& trial, const Reference& reference, const Communicator& world) {
  const DeviceMesh mesh = mesh_of(trial, world);
  manual_seed(mesh, trial.seed);
  const auto schedule = pipeline::make_schedule(trial.schedule, trial.ranks, trial.microbatches);
  const int layers = schedule.stages() + 1;  // Stages of unequal length.
  const auto [x, targets] = batch_of(trial);

  Model model(trial.seed, layers);
  Pipeline pipe(mesh, schedule, mean_loss, {.weight = pipeline::valid_targets()});
  std::vector<pipeline::Layer> list;
  for (int i = 0; i < layers; ++i) {
    list.push_back({c10::str(i), [&model, i, &trial](const Tensors& in) {
                      return model.run(i, in, trial.recompute, trial.dropout);
                    }});
  }
  const auto stage_of = pipeline::balanced_stages(std::vector<double>(list.size(), 1), schedule.stages());
  for (const int stage : pipe.stages()) {
    std::vector<at::Tensor> own;
    for (int i = 0; i < layers; ++i) {
      if (stage_of[static_cast<std::size_t>(i)] != stage) continue;
      for (at::Tensor* p : model.parameters_of(i)) *p = p->to(trial.device);
      place(model, i, pipe.stage_mesh(), trial.inside);
      for (at::Tensor* p : model.parameters_of(i)) own.push_back(*p);
    }
    pipe.set_stage(stage, pipeline::stage_of_layers(list, stage_of, stage), own);
  }
  if (trial.frozen && mesh.local_rank("pp") == schedule.rank_of(0)) {
    for (at::Tensor* p : model.parameters_of(0)) p->set_requires_grad(false);
  }
  std::vector<Tensors> inputs, target_parts;
  for (const auto& part : pipeline::microbatches(x, trial.microbatches))
    inputs.push_back({on_slice(part, pipe.stage_mesh(), trial.inside, trial.device)});
  for (const auto& part : pipeline::microbatches(targets, trial.microbatches))
    target_parts.push_back({on_slice(part, pipe.stage_mesh(), trial.inside, trial.device)});
  const auto result = pipe.step(inputs, target_parts, {.loss_scale = trial.scale});
  EXPECT_NEAR(result.loss.item<double>(), reference.loss, 1e-9) << trial.str();
  if (trial.dropout == 0) {
    EXPECT_NEAR(pipe.evaluate(inputs, target_parts).item<double>(), reference.loss, 1e-9) << trial.str();
  }
  std::size_t next = 0;
  for (int i = 0; i < layers; ++i) {
    const bool here = std::count(pipe.stages().begin(), pipe.stages().end(), stage_of[static_cast<std::size_t>(i)]) > 0;
    for (at::Tensor* p : model.parameters_of(i)) {
      const at::Tensor& expected = reference.gradients[next++];
      if (!here) continue;
      if (trial.frozen && i == 0) {
        EXPECT_FALSE(p->grad().defined()) << trial.str();
      } else {
        ASSERT_TRUE(p->grad().defined()) << trial.str() << " layer " << i;
        const at::Tensor gradient = is_dtensor(p->grad()) ? DTensor(p->grad()).full_tensor() : p->grad();
        expect_close(gradient.cpu(), expected, trial.str() + c10::str(" layer ", i));
      }
    }
  }
  const auto limits = pipeline::live_activations(pipe.schedule());
  int live = 0;
  for (const int most : result.live_activations) live += most;
  if (pipe.stages().size() == 1) {
    EXPECT_LE(live, limits[static_cast<std::size_t>(mesh.local_rank("pp"))]) << trial.str();
  }
}

}  // namespace dtensor::test::pipelines
