// The training loop: batches in, a record of each step out.
#include "run.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <optional>

#include "dtensor/bit_identical.h"
#include "dtensor/debug.h"
#include "dtensor/events.h"
#include "dtensor/fully_shard.h"
#include "dtensor/random.h"
#include "dtensor/tensor.h"
#include "job.h"
#include "state.h"
#include "step.h"
#include "train/bits/hashes.h"
#include "train/bits/rank_check.h"
#include "train/model/expert_flags.h"
#include "train/model/loss.h"
#include "train/model/optimizer.h"
#include "train/model/plan.h"
#include "train/model/stages.h"
#include "train/output/output.h"
#include "train/plots/load.h"

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

GptConfig gpt_config(const Options& options) {
  GptConfig config = options.model == "tiny" ? tiny() : gpt_153m();
  config.dropout = options.dropout;
  if (options.checkpoint_activations) config.run.recompute = dtensor::Recomputation::full;
  config.run.float8 = options.float8;
  config.tensor = config.tensor.dtype(scalar_type(options.dtype));
  if (options.hidden > 0) {
    config.hidden = options.hidden;
    config.ffn = 4 * options.hidden;
  }
  if (options.layers > 0) config.layers = options.layers;
  config.rope = options.rope;
  config.documents = options.documents;
  config.kv_heads = options.kv_heads;
  config.predict_tokens = options.predict_tokens;
  config.fused_loss = options.fused_loss;
  if (options.vocabulary > 0 && options.model == "tiny") config.vocabulary = options.vocabulary;
  if (!options.experts) return config;
  set_experts(config, *options.experts, options.batch * options.seq);
  return config;
}

std::vector<std::int64_t> pieces_of_batch(const Options& options) {
  const auto pieces = equal_parts(options.batch, options.grad_accum);
  if (!options.mesh || options.mesh->pp == 1) return pieces;
  std::vector<std::int64_t> all;
  for (const auto piece : pieces) {
    for (const auto part : equal_parts(piece, options.microbatches)) all.push_back(part);
  }
  return all;
}

namespace {

// What a run observes in its steps.
struct Observers {
  std::optional<HashRecorder> hashes;
  std::optional<RankCheck> ranks;
};

void add_gradients(HashRecorder& hashes, const Job& job) {
  for (const auto& [name, p] : job.model.named_parameters()) {
    hashes.add("gradient of " + name,
               p->grad().defined() ? dtensor::BitIdentical::content_hash(p->grad()) : std::string());
  }
}

void finish_hashes(HashRecorder& hashes, const Job& job, const Optimizer& optimizer, StepRecord& record) {
  auto of_parameters = optimizer.content_hashes();
  std::size_t next = 0;
  for (const auto& [name, p] : job.model.named_parameters()) {
    hashes.add(name + " and its optimizer states after the step", std::move(of_parameters.at(next++)));
  }
  const HashDifference found = hashes.finish(record.step + 1);
  record.difference = found.first, record.compared = found.compared, record.different = found.different;
}

void check_before_update(const Job& job, RankCheck& check, StepRecord& record) {
  const WrongRanks wrong = check.before_update();
  if (wrong.ranks.empty()) return;
  record.wrong_ranks = wrong.str();
  const auto text = fmt::format("step {}: {}", record.step + 1, record.wrong_ranks);
  if (job.options.stop_on_wrong_rank) throw WrongRankError(text + ". No parameter was changed.");
  if (world_of(job).rank() == 0) std::fputs((text + "\n").c_str(), stderr);
}

StepCalls calls_of(const Job& job, Observers& observers, std::int64_t step) {
  const Options& o = job.options;
  const auto draws = mesh_of_draws(job);
  const auto random = draws ? get_rng_state(draws) : dtensor::RngState();
  const Batch batch = job.corpus.batch(o.seed, step, {o.batch, o.seq, o.documents, o.end_of_document});
  StepCalls calls;
  calls.run = [&job, &observers, batch](StepRecord& record) {
    const bool checked = observers.ranks && (record.step + 1) % job.options.check_ranks == 0;
    const at::Tensor loss = checked ? observers.ranks->run(batch) : run_batch(job, batch);
    if (job.stages != nullptr) std::tie(record.began, record.actions) = job.stages->take_actions();
    if (job.memory != nullptr) job.memory->measure_parameters();
    if (observers.ranks) check_before_update(job, *observers.ranks, record);
    return loss;
  };
  calls.repeat = [&job, batch, draws, random] {
    if (draws) set_rng_state(draws, random);
    run_batch(job, batch);
  };
  if (observers.hashes) calls.before_update = [&job, &observers] { add_gradients(*observers.hashes, job); };
  if (job.stages != nullptr)
    calls.read_norm = [&job](const at::Tensor& norm) { return job.stages->on_every_rank(norm); };
  calls.after_update = [&job, &observers] {
    if (observers.ranks) observers.ranks->after_update();
    if (job.stages != nullptr) return job.stages->update_load_balancers();
    if (job.options.experts) dtensor::update_load_balancers(job.model, world_of(job));
  };
  return calls;
}

StepRecord train_step(const Job& job, Optimizer& optimizer, Observers& observers) {
  const Options& o = job.options;
  std::optional<dtensor::BitIdentical> same_bits;
  if (o.bit_identical) same_bits.emplace();
  std::optional<dtensor::CommDebugMode> modules;  // Finds the modules of operators in backward.
  if (observers.hashes) modules.emplace();
  const StepCalls calls = calls_of(job, observers, optimizer.steps_done());
  return run_step(optimizer, o.batch * o.seq, calls, world_of(job));
}

StepRecord observe_step(const Job& job, Optimizer& optimizer, Observers& observers) {
  StepRecord record = train_step(job, optimizer, observers);
  if (job.load != nullptr) job.load->finish(world_of(job), job.options.experts->etp, record);
  if (observers.hashes) finish_hashes(*observers.hashes, job, optimizer, record);
  return record;
}

// A run on one device does not save, so it needs no fingerprint of the text.
RunText text_of(const Job& job) {
  if (!job.mesh) return {};
  return {.tokens = static_cast<std::int64_t>(job.corpus.tokens()),
          .fingerprint = static_cast<std::int64_t>(job.corpus.fingerprint()),
          .documents = job.options.documents};
}

// Grows linearly to --lr in --warmup steps.
dtensor::LearningRate learning_rate(const Options& o) {
  return dtensor::LearningRate([lr = o.lr, warmup = static_cast<double>(o.warmup)](std::int64_t step) {
    return warmup == 0 ? lr : lr * std::min(1.0, static_cast<double>(step + 1) / warmup);
  });
}

std::vector<StepRecord> run_steps(const Job& job, const OnStep& on_step) {
  const Options& o = job.options;
  if (o.bit_identical) dtensor::BitIdentical::content_hash(at::zeros({1}));  // throws early without libcrypto
  Optimizer optimizer(job.model.named_parameters(),
                      {.name = o.optimizer, .rate = learning_rate(o), .clip = o.clip, .shampoo = o.shampoo});
  RunState state(o, text_of(job), model_flags(o), world_of(job));
  state.parts().add("model", job.model);
  optimizer.add_to(state.parts());
  if (job.mesh) state.parts().add_random("random", job.mesh);
  if (job.stages != nullptr) state.before_save([&job] { job.stages->share_buffers(); });
  std::vector<StepRecord> records;
  state.begin();
  Observers observers;
  if (!o.hashes.empty() && job.mesh) observers.hashes.emplace(o, world_of(job));  // Not of the run of --compare.
  if (o.check_ranks > 0 && job.mesh) observers.ranks.emplace(job, optimizer);
  while (optimizer.steps_done() < o.steps) {
    const bool last = optimizer.steps_done() + 1 == o.steps;
    std::optional<MemoryRecord> memory;
    if (last && job.memory != nullptr && job.memory->sampled) {
      memory.emplace(job.model.named_parameters(), job.counts, optimizer.state_bytes());
    }
    records.push_back(observe_step(job, optimizer, observers));
    if (memory) job.memory->samples = memory->samples();
    memory.reset();
    if (on_step) on_step(records.back());
    records.back().stop_signal = state.after(records.back().step);
    if (records.back().stop_signal != 0) break;
  }
  if (o.bit_identical) records.back().content_hash = optimizer.content_hash(world_of(job));
  if (job.memory != nullptr) job.memory->measured.optimizer = optimizer.state_bytes();
  return records;
}

// Whether one device needs a mesh of one rank: for random numbers by element index (dropout, the router's jitter), and
// for operators of a BitIdentical scope.
bool needs_mesh(const Options& options) {
  return options.bit_identical || options.dropout > 0 || (options.experts && options.experts->jitter > 0);
}

void make_regular(Gpt& model) {
  for (const auto& [name, tensor] : model.named_parameters()) {
    *tensor = dtensor::DTensor(tensor->detach()).full_tensor().clone().requires_grad_();
  }
}

// Trains on a mesh, and measures what was requested: memory and load of the experts.
std::vector<StepRecord> run_job(Job job, const OnStep& on_step) {
  job.corpus.check_same(job.mesh.world());
  dtensor::manual_seed(job.mesh, job.options.seed);
  job.model.reset();
  std::optional<LoadCount> load;
  if (job.options.experts && job.options.experts->show_load) job.load = &load.emplace(job.model);
  if (job.stages != nullptr && job.load != nullptr) job.stages->on_forward([&](auto& part) { load->add(part); });
  if (job.memory == nullptr) return run_steps(job, on_step);
  job.memory->begin(job.model.named_parameters(), job.counts);
  auto records = run_steps(job, on_step);
  job.memory->end(job.mesh);
  return records;
}

std::vector<StepRecord> train_in_stages(const dtensor::Communicator& world, const Options& options,
                                        const Corpus& corpus, const OnStep& on_step, MemoryUse* memory) {
  const dtensor::DeviceMesh mesh = make_pipeline_mesh(world, fit_mesh(options, world.size()), device_type(options));
  Gpt model(meta_config(options));
  Stages stages(model, mesh, options);
  const auto units = distribute(stages, options);
  stages.set();
  Job job{.options = options, .corpus = corpus, .model = model, .mesh = mesh, .memory = memory, .stages = &stages};
  job.pieces = equal_parts(options.batch, options.grad_accum);
  for (const int stage : stages.own()) job.counts.push_back(units[static_cast<std::size_t>(stage)].front());
  auto records = run_job(job, on_step);
  if (options.schedule_plot.empty()) return records;
  const std::string plot = stages.diagram();
  if (world.rank() == 0) write_file(options.schedule_plot, plot);
  return records;
}

}  // namespace

std::vector<StepRecord> train_on_mesh(const dtensor::Communicator& world, const Options& options, const Corpus& corpus,
                                      const OnStep& on_step, MemoryUse* memory) {
  if (options.mesh && options.mesh->pp > 1) return train_in_stages(world, options, corpus, on_step, memory);
  const dtensor::DeviceMesh mesh = make_mesh(world, fit_mesh(options, world.size()), device_type(options));
  Gpt model(meta_config(options));
  Job job{.options = options, .corpus = corpus, .model = model, .batch_mesh = mesh, .mesh = mesh, .memory = memory};
  const auto units = distribute(model, mesh, options);
  if (!units.empty()) job.counts = {units.front()};
  job.pieces = pieces_of_batch(options);
  return run_job(job, on_step);
}

std::vector<StepRecord> train_on_one_device(const Options& options, const Corpus& corpus, std::int64_t pieces,
                                            const OnStep& on_step) {
  std::vector<StepRecord> records;
  dtensor::run_local(1, [&](dtensor::Communicator world) {
    const dtensor::DeviceMesh mesh = make_mesh(world, {}, device_type(options));
    Gpt model(meta_config(options));
    parallelize(model, mesh, {});
    dtensor::manual_seed(mesh, options.seed);
    model.reset();
    const bool regular = !needs_mesh(options);
    if (regular) make_regular(model);
    Job job{.options = options, .corpus = corpus, .model = model};
    if (!regular) job.batch_mesh = mesh;
    std::optional<LoadCount> load;
    if (options.experts && options.experts->show_load) job.load = &load.emplace(model);
    job.pieces = pieces == 0 ? pieces_of_batch(options) : equal_parts(options.batch, pieces);
    records = run_steps(job, on_step);
  });
  return records;
}

}  // namespace train
