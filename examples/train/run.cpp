// The training loop: batches in, a record of each step out.
#include "run.h"

#include <ATen/ATen.h>

#include <chrono>
#include <optional>

#include "dtensor/events.h"
#include "dtensor/fully_shard.h"
#include "dtensor/hooks.h"
#include "dtensor/tensor.h"
#include "init.h"
#include "optimizer.h"
#include "plan.h"
#include "state.h"

namespace train {

GptConfig gpt_config(const Options& options) {
  GptConfig config = options.model == "tiny" ? tiny() : gpt_153m();
  config.dropout = options.dropout;
  if (options.hidden > 0) {
    config.hidden = options.hidden;
    config.ffn = 4 * options.hidden;
  }
  return config;
}

namespace {

struct Job {
  const Options& options;
  const Corpus& corpus;
  mutable Parameters parameters;  // a forward pass may exchange them for their casts while it runs
  std::function<at::Tensor(const at::Tensor&)> place_batch;  // empty: the batch stays as it is
  LogitsHook on_logits;
  std::int64_t pieces = 1;
  ModelHooks hooks = {};
  dtensor::DeviceMesh mesh = {};  // empty: one device, which neither loads nor saves
  MemoryUse* memory = nullptr;    // null: not measured
};

double to_number(const at::Tensor& scalar) {
  return dtensor::is_dtensor(scalar) ? dtensor::DTensor(scalar.detach()).full_tensor().item<double>()
                                     : scalar.item<double>();
}

// Forward and backward of one piece of the batch; its share of the mean loss.
double run_piece(const Job& job, const GptConfig& config, at::Tensor ids, at::Tensor targets, double share) {
  if (job.place_batch) {
    ids = job.place_batch(ids);
    targets = job.place_batch(targets);
  }
  at::Tensor loss;
  {
    const dtensor::ComputeScope scope(job.parameters.slots());
    const auto on_logits = [&](const at::Tensor& logits) {
      return scope.output(job.on_logits ? job.on_logits(logits) : logits);
    };
    loss = gpt_loss(config, job.parameters, ids, targets, on_logits, job.hooks);
  }
  if (share != 1) loss = loss * share;
  loss.backward();
  return to_number(loss);
}

double run_batch(const Job& job, const GptConfig& config, const Batch& batch) {
  if (job.pieces == 1) return run_piece(job, config, batch.ids, batch.targets, 1);
  const auto ids = batch.ids.chunk(job.pieces), targets = batch.targets.chunk(job.pieces);
  double loss = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const double share = static_cast<double>(ids[i].numel()) / static_cast<double>(batch.ids.numel());
    std::optional<dtensor::NoGradientSync> later;
    if (i + 1 < ids.size()) later.emplace();
    loss += run_piece(job, config, ids[i], targets[i], share);
  }
  return loss;
}

StepRecord run_step(const Job& job, const GptConfig& config, Optimizer& optimizer, std::int64_t step) {
  const Options& o = job.options;
  StepRecord record{.step = step, .tokens = o.batch * o.seq, .lr = optimizer.next_lr()};
  const auto begin = std::chrono::steady_clock::now();
  const dtensor::EventListener listener([&](const dtensor::Event& event) { record.moved[event.axis] += event.bytes; },
                                        {dtensor::Event::Kind::collective});
  record.loss = run_batch(job, config, job.corpus.batch(o.seed, step, o.batch, o.seq));
  if (job.memory != nullptr) job.memory->measure_parameters(job.parameters.slots());
  record.grad_norm = to_number(optimizer.step());
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return record;
}

std::vector<StepRecord> run_steps(const Job& job, const OnStep& on_step) {
  const GptConfig config = gpt_config(job.options);
  const Options& o = job.options;
  Optimizer optimizer(job.parameters, {.name = o.optimizer, .lr = o.lr, .clip = o.clip, .warmup = o.warmup});
  RunState state(o, job.mesh ? job.mesh.world() : dtensor::Communicator());
  state.parts().add("model", job.parameters.slots());
  optimizer.add_to(state.parts());
  if (job.mesh) state.parts().add_random("random", job.mesh);
  std::vector<StepRecord> records;
  for (std::int64_t step = state.begin(); step < o.steps; ++step) {
    records.push_back(run_step(job, config, optimizer, step));
    if (on_step) on_step(records.back());
    state.after(step);
  }
  if (job.memory != nullptr) job.memory->measured.optimizer = optimizer.state_bytes();
  return records;
}

}  // namespace

std::vector<StepRecord> train_on_mesh(const dtensor::Communicator& world, const Options& options, const Corpus& corpus,
                                      const OnStep& on_step, MemoryUse* memory) {
  const MeshShape shape = fit_mesh(options, world.size());
  const dtensor::DeviceMesh mesh = make_mesh(world, shape);
  const GptConfig config = gpt_config(options);
  Job job{options, corpus, make_parameters(config, mesh, shape, options.dtype, options.seed),
          {},      {},     options.grad_accum};
  std::vector<dtensor::FsdpUnit> units;
  if (options.parallel == "fsdp") units = make_units(job.parameters, config, mesh, options);
  job.place_batch = [&](const at::Tensor& t) { return dtensor::distribute_tensor(t, mesh, batch_placements()); };
  if (!options.loss_parallel) job.on_logits = gather_classes();
  job.mesh = mesh;
  job.hooks = model_hooks(options.sequence_parallel, options.checkpoint_activations);
  if (memory == nullptr) return run_steps(job, on_step);
  job.memory = memory;
  memory->predict(units, options.optimizer);
  auto records = run_steps(job, on_step);
  memory->measure_peaks(units.front().stats(), world.size());
  return records;
}

std::vector<StepRecord> train_on_one_device(const Options& options, const Corpus& corpus, std::int64_t pieces) {
  std::vector<StepRecord> records;
  dtensor::run_local(1, [&](dtensor::Communicator world) {
    const dtensor::DeviceMesh mesh = make_mesh(world, {});
    const Parameters born = make_parameters(gpt_config(options), mesh, {}, options.dtype, options.seed);
    Job job{options, corpus, options.dropout > 0 ? born : to_plain(born), {}, {}, pieces};
    if (options.dropout > 0) {
      job.place_batch = [&](const at::Tensor& t) { return dtensor::distribute_tensor(t, mesh, batch_placements()); };
    }
    records = run_steps(job, {});
  });
  return records;
}

}  // namespace train
