// The training loop of the mixture of experts.
#include "run.h"

#include <ATen/ATen.h>

#include <chrono>
#include <optional>

#include "dtensor/events.h"
#include "dtensor/fully_shard.h"
#include "dtensor/hooks.h"
#include "dtensor/mesh_scope.h"
#include "dtensor/optim.h"
#include "dtensor/random.h"
#include "dtensor/tensor.h"
#include "train/plan.h"
#include "train/state.h"

namespace moe_example {
namespace {

using dtensor::Communicator;
using dtensor::DTensor;

struct Job {
  const Options& options;
  const train::Corpus& corpus;
  Communicator world;  // none: one device
  dtensor::DeviceMesh mesh = {};
  std::unique_ptr<Model> model = {};
  int pieces = 1;
  double distinct = 1;  // of all ranks' tokens: 1 / how often each is counted
};

// Born on the mesh, so that the numbers are those of any mesh.
std::unique_ptr<Model> make_model(const Job& job) {
  dtensor::manual_seed(job.mesh, job.options.job.seed);
  const dtensor::MeshScope scope(job.mesh);
  auto model = std::make_unique<Model>(model_config(job.options));
  for (auto* layer : dtensor::moe_layers(*model)) {
    layer->set_dispatch(dispatch_kind(job.options), {.factor = job.options.capacity});
  }
  return model;
}

void make_plain(Model& model) {
  for (const auto& [name, tensor] : model.named_parameters()) {
    *tensor = DTensor(tensor->detach()).full_tensor().clone().requires_grad_();
  }
}

bool is_expert(const std::string& name) { return name.find(".experts.") != std::string::npos; }

// The parameters whose names begin so, of the kind asked for.
dtensor::NamedTensors list(Model& model, const std::string& prefix, bool experts) {
  dtensor::NamedTensors result;
  for (const auto& item : model.named_parameters()) {
    if (item.first.rfind(prefix, 0) == 0 && is_expert(item.first) == experts) result.push_back(item);
  }
  return result;
}

// A unit for the experts of a block, one for the rest of it, and one for what is left.
void make_units(const Job& job, const dtensor::DeviceMesh& sparse) {
  dtensor::FsdpOptions dense, experts;
  dense.reshard_after_forward = experts.reshard_after_forward = job.options.job.reshard == "true";
  experts.shard_axis = "edp";
  experts.shard_dim = [&](const std::string&, const at::Tensor& w) { return DTensor(w).placements().front().dim(); };
  const auto layers = model_config(job.options).layers;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const auto prefix = "h." + std::to_string(layer) + ".";
    if (sparse.size("edp") > 1) fully_shard(list(*job.model, prefix, /*experts=*/true), sparse, experts);
    fully_shard(list(*job.model, prefix, /*experts=*/false), job.mesh, dense);
  }
  fully_shard(list(*job.model, "", /*experts=*/false), job.mesh, dense);
}

// As in examples/train; a list of parameters is planned by their own names.
const dtensor::ParallelPlan& dense_plan() {
  static const dtensor::ParallelPlan plan = {
      {"wte.weight", dtensor::ShardParameter{0}},
      {"h.*.attn.q_proj.weight", dtensor::ShardParameter{0}},
      {"h.*.attn.k_proj.weight", dtensor::ShardParameter{0}},
      {"h.*.attn.v_proj.weight", dtensor::ShardParameter{0}},
      {"h.*.attn.o_proj.weight", dtensor::ShardParameter{1}},
      {"lm_head.weight", dtensor::ShardParameter{0}},
  };
  return plan;
}

// Experts first, then what is left, then units of both.
void distribute(Job& job, const train::MeshShape& shape) {
  const auto sparse = fit_sparse(job.options, shape);
  const auto view = job.mesh.view({sparse.edp, sparse.ep, sparse.etp}, {"edp", "ep", "etp"});
  dtensor::apply_expert_parallel(*job.model, view);
  const auto dense = list(*job.model, "", /*experts=*/false);
  dtensor::parallelize(dense, job.mesh, dense_plan());
  train::shard_storage(dense);
  if (job.options.job.parallel == "fsdp" && job.mesh.size() > 1) make_units(job, view);
  if (sparse.etp > 1) job.distinct = 1 / static_cast<double>(sparse.etp);
}

at::Tensor placed(const Job& job, const at::Tensor& t) {
  return job.mesh ? at::Tensor(dtensor::distribute_tensor(t, job.mesh, train::batch_placements())) : t;
}

double to_number(const at::Tensor& scalar) {
  return dtensor::is_dtensor(scalar) ? DTensor(scalar.detach()).full_tensor().item<double>() : scalar.item<double>();
}

double run_piece(const Job& job, const at::Tensor& ids, const at::Tensor& targets, double share) {
  std::vector<at::Tensor> losses;
  auto logits = job.model->forward(placed(job, ids), losses);
  if (job.mesh && !job.options.job.loss_parallel) logits = dtensor::constrain(logits, "tp", dtensor::Replicate());
  at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), placed(job, targets).flatten());
  if (!losses.empty()) loss = loss + at::stack(losses).sum();
  if (share != 1) loss = loss * share;
  loss.backward();
  return to_number(loss);
}

double run_batch(const Job& job, const train::Batch& batch) {
  if (job.pieces == 1) return run_piece(job, batch.ids, batch.targets, 1);
  const auto ids = batch.ids.chunk(job.pieces), targets = batch.targets.chunk(job.pieces);
  double loss = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::optional<dtensor::NoGradientSync> later;
    if (i + 1 < ids.size()) later.emplace();
    loss += run_piece(job, ids[i], targets[i],
                      static_cast<double>(ids[i].numel()) / static_cast<double>(batch.ids.numel()));
  }
  return loss;
}

// Over all ranks, in one collective.
void add_load(const Job& job, StepRecord& record) {
  const auto layers = dtensor::moe_layers(*job.model);
  std::vector<at::Tensor> parts;
  for (auto* layer : layers) {
    parts.push_back(layer->stats().load);
    parts.push_back(at::tensor({layer->stats().dropped}));
  }
  auto all = at::cat(parts);
  if (job.world && job.world.size() > 1) job.world.all_reduce(all, dtensor::ReduceOp::sum).wait();
  const auto table = all.view({static_cast<std::int64_t>(layers.size()), -1}).to(at::kDouble) * job.distinct;
  const auto load = table.narrow(1, 0, table.size(1) - 1);
  const auto ratio = load.amax({1}) / load.mean(1).clamp_min(1e-9);
  record.imbalance.assign(ratio.const_data_ptr<double>(), ratio.const_data_ptr<double>() + ratio.numel());
  record.dropped = table.select(1, table.size(1) - 1).sum().item<std::int64_t>();
}

StepRecord run_step(const Job& job, dtensor::AdamW& optimizer, std::int64_t step) {
  const auto& o = job.options.job;
  StepRecord record;
  record.step = {.step = step, .tokens = o.batch * o.seq, .lr = optimizer.lr()};
  const auto begin = std::chrono::steady_clock::now();
  {
    const dtensor::EventListener listener([&](const dtensor::Event& event) {
      if (event.kind == dtensor::Event::Kind::collective) record.step.moved[event.axis] += event.bytes;
    });
    record.step.loss = run_batch(job, job.corpus.batch(o.seed, step, o.batch, o.seq));
    const auto parameters = optimizer.parameters();
    record.step.grad_norm = to_number(dtensor::clip_grad_norm_(parameters, o.clip > 0 ? o.clip : 1e30));
    optimizer.step();
    dtensor::update_load_balancers(*job.model, job.mesh ? job.mesh.communicator() : Communicator());
    optimizer.zero_grad();
  }
  record.step.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (job.options.show_load) add_load(job, record);
  return record;
}

double warmed_up(const train::Options& o, std::int64_t step) {
  return step < o.warmup ? o.lr * static_cast<double>(step + 1) / static_cast<double>(o.warmup) : o.lr;
}

std::vector<StepRecord> run_steps(const Job& job, const OnStep& on_step) {
  const auto& o = job.options.job;
  dtensor::AdamW::Group group{
      .parameters = {}, .options = {.lr = o.lr, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1}, .names = {}};
  for (const auto& [name, tensor] : job.model->named_parameters()) {
    group.names.push_back(name);
    group.parameters.push_back(*tensor);
  }
  dtensor::AdamW optimizer(std::vector<dtensor::AdamW::Group>{std::move(group)});
  train::RunState state(o, job.mesh ? job.world : Communicator());
  state.parts().add("model", *job.model).add("optimizer", optimizer);
  if (job.mesh) state.parts().add_random("random", job.mesh);
  std::vector<StepRecord> records;
  for (std::int64_t step = state.begin(); step < o.steps; ++step) {
    optimizer.set_lr(warmed_up(o, step));
    records.push_back(run_step(job, optimizer, step));
    if (on_step) on_step(records.back());
    state.after(step);
  }
  return records;
}

}  // namespace

std::vector<StepRecord> train_on_mesh(const Communicator& world, const Options& options, const train::Corpus& corpus,
                                      const OnStep& on_step) {
  const auto shape = train::fit_mesh(options.job, world.size());
  Job job{options, corpus, world, train::make_mesh(world, shape)};
  job.pieces = static_cast<int>(options.job.grad_accum);
  job.model = make_model(job);
  distribute(job, shape);
  return run_steps(job, on_step);
}

std::vector<StepRecord> train_on_one_device(const Options& options, const train::Corpus& corpus, int pieces) {
  std::vector<StepRecord> records;
  dtensor::run_local(1, [&](Communicator world) {
    Job job{options, corpus, {}, train::make_mesh(world, {})};
    job.model = make_model(job);
    make_plain(*job.model);
    job.mesh = {};
    job.pieces = pieces;
    records = run_steps(job, {});
  });
  return records;
}

}  // namespace moe_example
