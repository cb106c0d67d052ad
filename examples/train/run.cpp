// The training loop: batches in, a record of each step out.
#include "run.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <optional>

#include "dtensor/attention.h"
#include "dtensor/events.h"
#include "dtensor/fully_shard.h"
#include "dtensor/hooks.h"
#include "dtensor/random.h"
#include "dtensor/tensor.h"
#include "load.h"
#include "memory_plot.h"
#include "optimizer.h"
#include "plan.h"
#include "stages.h"
#include "state.h"

namespace train {

at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::float64:
      return at::kDouble;
    case Dtype::bfloat16:
      return at::kBFloat16;
    default:
      return at::kFloat;
  }
}

namespace {

ExpertConfig expert_config(const ExpertFlags& flags, std::int64_t hidden) {
  static const std::map<std::string, dtensor::DispatchKind> kinds = {{"all-to-all", dtensor::DispatchKind::all_to_all},
                                                                     {"all-gather", dtensor::DispatchKind::all_gather},
                                                                     {"capacity", dtensor::DispatchKind::capacity},
                                                                     {"equal", dtensor::DispatchKind::equal}};
  ExpertConfig c{.moe = {}, .dispatch = kinds.at(flags.dispatcher), .capacity = {.factor = flags.capacity}};
  c.moe.ffn = flags.ffn > 0 ? flags.ffn : hidden;
  c.moe.shared_ffn = flags.shared;
  auto& r = c.moe.router;
  r.experts = flags.experts;
  r.top_k = flags.top_k;
  r.normalise = true;
  if (flags.balance == "aux") r.aux_loss = 0.01;
  if (flags.balance == "bias") c.moe.balance_rate = 0.001;
  if (flags.router == "experts") r.choice = dtensor::RouterChoice::experts;
  r.groups = flags.groups, r.top_groups = flags.top_groups;
  r.z_loss = flags.z_loss, r.jitter = flags.jitter;
  c.moe.score_before_experts = flags.score_before;
  c.moe.experts.block = flags.block;
  if (flags.backend == "loop") c.moe.experts.backend = dtensor::ExpertBackend::loop;
  if (flags.backend == "grouped") c.moe.experts.backend = dtensor::ExpertBackend::grouped;
  if (flags.balance == "forced") r.choice = dtensor::RouterChoice::round_robin;
  return c;
}

}  // namespace

GptConfig gpt_config(const Options& options) {
  GptConfig config = options.model == "tiny" ? tiny() : gpt_153m();
  config.dropout = options.dropout;
  config.checkpoint_blocks = options.checkpoint_activations;
  config.tensor = config.tensor.dtype(scalar_type(options.dtype));
  if (options.hidden > 0) {
    config.hidden = options.hidden;
    config.ffn = 4 * options.hidden;
  }
  if (options.layers > 0) config.layers = options.layers;
  config.rope = options.rope;
  config.documents = options.documents;
  config.kv_heads = options.kv_heads;
  if (options.vocabulary > 0 && options.model == "tiny") config.vocabulary = options.vocabulary;
  if (options.experts) config.experts = expert_config(*options.experts, config.hidden);
  return config;
}

namespace {

struct Job {
  const Options& options;
  const Corpus& corpus;
  Gpt& model;
  dtensor::DeviceMesh batch_mesh = {};  // empty: the batch stays as it is
  std::int64_t pieces = 1;
  dtensor::DeviceMesh mesh = {};                          // empty: one device, which neither loads nor saves
  MemoryUse* memory = nullptr;                            // null: not measured
  Stages* stages = nullptr;                               // null: no pipeline
  const std::vector<dtensor::FsdpUnit>* units = nullptr;  // of rank 0 where its memory is drawn
};

double to_number(const at::Tensor& scalar) {
  return dtensor::is_dtensor(scalar) ? dtensor::DTensor(scalar.detach()).full_tensor().item<double>()
                                     : scalar.item<double>();
}

at::Tensor placed(const Job& job, const at::Tensor& t) {
  return job.batch_mesh ? at::Tensor(distribute_tensor(t, job.batch_mesh, batch_placements(job.options))) : t;
}

// Forward and backward of one piece of the batch; its share of the mean loss.
double run_piece(const Job& job, const at::Tensor& ids, const at::Tensor& targets, double share) {
  at::Tensor loss;
  {
    const dtensor::ComputeScope scope(job.model.named_parameters());
    const auto out = job.model.run(placed(job, ids));
    loss = token_loss(scope.output(out.logits), placed(job, targets));
    if (!out.router_losses.empty()) loss = loss + at::stack(out.router_losses).sum();
  }
  if (share != 1) loss = loss * share;
  loss.backward();
  return to_number(loss);
}

double run_batch(const Job& job, const Batch& batch) {
  const dtensor::AttentionStrategyScope strategy(dtensor::parse_attention_strategy(job.options.cp_strategy));
  if (job.stages != nullptr) return job.stages->run(batch);
  if (job.pieces == 1) return run_piece(job, batch.ids, batch.targets, 1);
  const auto ids = dtensor::pipeline::microbatches(batch.ids, static_cast<int>(job.pieces)),
             targets = dtensor::pipeline::microbatches(batch.targets, static_cast<int>(job.pieces));
  const auto random = job.batch_mesh ? get_rng_state(job.batch_mesh) : dtensor::RngState();
  double loss = 0;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const double share = static_cast<double>(ids[i].numel()) / static_cast<double>(batch.ids.numel());
    const dtensor::BatchRows rows({first, ids[i].size(0), batch.ids.size(0)});  // dropout is that of the whole batch
    if (job.batch_mesh) set_rng_state(job.batch_mesh, random);
    std::optional<dtensor::NoGradientSync> later;
    if (i + 1 < ids.size()) later.emplace();
    loss += run_piece(job, ids[i], targets[i], share);
    first += ids[i].size(0);
  }
  return loss;
}

// Events are counted for the length of the step, but not those of counting the load.
void train_step(const Job& job, Optimizer& optimizer, StepRecord& record) {
  const Options& o = job.options;
  const dtensor::EventListener listener([&](const dtensor::Event& event) { record.moved[event.axis] += event.bytes; },
                                        {dtensor::Event::Kind::collective});
  record.loss = run_batch(job, job.corpus.batch(o.seed, record.step, {o.batch, o.seq, o.documents}));
  if (job.stages != nullptr) {
    record.began = job.stages->last_step().begin;
    record.actions = job.stages->last_step().actions;
  }
  if (job.memory != nullptr) job.memory->measure_parameters(job.model.named_parameters());
  record.grad_norm = to_number(optimizer.step());
  if (job.stages != nullptr) return job.stages->update_load_balancers();
  if (o.experts)
    dtensor::update_load_balancers(job.model, job.mesh ? job.mesh.communicator() : dtensor::Communicator());
}

StepRecord run_step(const Job& job, Optimizer& optimizer, std::int64_t step) {
  const Options& o = job.options;
  StepRecord record{.step = step, .tokens = o.batch * o.seq, .lr = optimizer.next_lr()};
  record.start = std::chrono::steady_clock::now();
  train_step(job, optimizer, record);
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - record.start).count();
  if (o.experts && o.experts->show_load && job.stages == nullptr) {
    add_load(job.model, job.mesh ? job.mesh.world() : dtensor::Communicator(), o.experts->etp, record);
  }
  return record;
}

std::vector<StepRecord> run_steps(const Job& job, const OnStep& on_step) {
  const Options& o = job.options;
  Optimizer optimizer(job.model.named_parameters(),
                      {.name = o.optimizer, .lr = o.lr, .clip = o.clip, .warmup = o.warmup, .shampoo = o.shampoo});
  RunState state(o, job.mesh ? job.mesh.world() : dtensor::Communicator());
  state.parts().add("model", job.model);
  optimizer.add_to(state.parts());
  if (job.mesh) state.parts().add_random("random", job.mesh);
  std::vector<StepRecord> records;
  for (std::int64_t step = state.begin(); step < o.steps; ++step) {
    std::optional<MemoryRecord> memory;
    if (step + 1 == o.steps && !o.memory_plot.empty()) {
      const auto states = optimizer.state_bytes();  // collective
      if (job.units != nullptr) memory.emplace(job.model.named_parameters(), *job.units, states);
    }
    records.push_back(run_step(job, optimizer, step));
    if (memory) {
      std::ofstream(o.memory_plot) << memory_svg(fmt::format("memory of rank 0: {}", job.mesh.str()),
                                                 memory->samples());
      memory.reset();
    }
    if (on_step) on_step(records.back());
    records.back().left_by = state.after(step);
    if (records.back().left_by != 0) break;
  }
  if (job.memory != nullptr) job.memory->measured.optimizer = optimizer.state_bytes();
  return records;
}

// Without data: each rank makes its own part only, and the numbers are those of any mesh.
GptConfig meta_config(const Options& options) {
  GptConfig config = gpt_config(options);
  config.tensor = config.tensor.device(at::kMeta);
  return config;
}

void make_plain(Gpt& model) {
  for (const auto& [name, tensor] : model.named_parameters()) {
    *tensor = dtensor::DTensor(tensor->detach()).full_tensor().clone().requires_grad_();
  }
}

}  // namespace

namespace {

std::vector<StepRecord> train_in_stages(const dtensor::Communicator& world, const Options& options,
                                        const Corpus& corpus, const OnStep& on_step) {
  const dtensor::DeviceMesh mesh = make_pipeline_mesh(world, fit_mesh(options, world.size()));
  Gpt model(meta_config(options));
  Stages stages(model, mesh, options);
  const auto units = distribute(model, stages, options);
  stages.set();
  dtensor::manual_seed(mesh, options.seed);
  model.reset();
  auto records =
      run_steps({.options = options, .corpus = corpus, .model = model, .mesh = mesh, .stages = &stages}, on_step);
  if (options.schedule_plot.empty()) return records;
  const std::string picture = stages.picture();
  if (world.rank() == 0) std::ofstream(options.schedule_plot) << picture;
  return records;
}

}  // namespace

std::vector<StepRecord> train_on_mesh(const dtensor::Communicator& world, const Options& options, const Corpus& corpus,
                                      const OnStep& on_step, MemoryUse* memory) {
  if (options.mesh && options.mesh->pp > 1) return train_in_stages(world, options, corpus, on_step);
  const dtensor::DeviceMesh mesh = make_mesh(world, fit_mesh(options, world.size()));
  Gpt model(meta_config(options));
  const auto units = distribute(model, mesh, options);
  dtensor::manual_seed(mesh, options.seed);
  model.reset();
  Job job{options, corpus, model, mesh, options.grad_accum, mesh, memory};
  if (!options.memory_plot.empty() && world.rank() == 0) job.units = &units;
  if (memory == nullptr) return run_steps(job, on_step);
  memory->predict(units, options.optimizer);
  auto records = run_steps(job, on_step);
  memory->measure_peaks(units.front().stats(), world.size());
  return records;
}

std::vector<StepRecord> train_on_one_device(const Options& options, const Corpus& corpus, std::int64_t pieces) {
  std::vector<StepRecord> records;
  dtensor::run_local(1, [&](dtensor::Communicator world) {
    const dtensor::DeviceMesh mesh = make_mesh(world, {});
    Gpt model(meta_config(options));
    parallelize(model, mesh, {});
    dtensor::manual_seed(mesh, options.seed);
    model.reset();
    const bool plain = options.dropout == 0;
    if (plain) make_plain(model);
    records = run_steps({options, corpus, model, plain ? dtensor::DeviceMesh() : mesh, pieces}, {});
  });
  return records;
}

}  // namespace train
