// The command `train`.
#include "llm/commands/train.h"

#include <fmt/format.h>

#include "device_flag.h"
#include "dtensor/dry_run.h"
#include "dtensor/random.h"
#include "llm/commands/export.h"
#include "llm/text/text.h"
#include "train/layouts/dry_run.h"
#include "train/output/run_output.h"
#include "train/plots/plot.h"
#include "train/state.h"

namespace llm {
namespace {

void check_tokens_of(const std::vector<std::int32_t>& tokens, const char* flag, const TrainOptions& o) {
  if (static_cast<std::int64_t>(tokens.size()) > o.seq) return;
  throw UsageError(fmt::format("{}: expected more than --seq {} tokens, got {}", flag, o.seq, tokens.size()));
}

// Trains up to --steps. Returns the signal that stopped the run, or 0.
int train_steps(Trainer& trainer, train::RunState& state, train::RunOutput& output, const train::Corpus& corpus,
                const std::vector<std::int32_t>& held_out, const TrainOptions& o) {
  const auto steps_done = [&] { return trainer.optimizer().steps_done(); };
  const auto judge = [&] {
    if (!held_out.empty()) output.add_evaluation(steps_done(), evaluate(trainer, held_out, o));
  };
  while (steps_done() < o.steps) {
    const auto record = trainer.step(corpus.batch(o.seed, steps_done(), {o.batch, o.seq}));
    output.add(record);
    const std::int64_t done = steps_done();
    if (done == 1) dtensor::StepRecorder::begin_step();
    if (o.eval_every > 0 && done % o.eval_every == 0 && done < o.steps) judge();
    if (const int signal = state.after(record.step); signal != 0) return signal;
  }
  judge();
  return 0;
}

// The flags that change the model without changing names or sizes of its parameters. Without adapters the checkpoint
// has all parameters.
std::string model_flags(const Model& model, const dtensor::nn::LoraOptions& lora) {
  if (lora.rank == 0 || dtensor::is_dry_run()) return "no --lora-rank";
  return fmt::format("--lora-alpha {} over a --model of fingerprint {:016x}", lora.alpha, base_fingerprint(model));
}

void print_content_hash(Trainer& trainer, const dtensor::Communicator& world) {
  const std::string hash = trainer.optimizer().content_hash(world);
  if (world.rank() == 0) fmt::print("SHA-256 of parameters and optimizer states: {}\n", hash);
}

void plot(const TrainOptions& o, const std::string& model, const train::RunOutput& output) {
  const auto& losses = output.losses();
  if (o.plot.empty() || losses.empty()) return;
  train::write_svg(o.plot, {.title = fmt::format("{}: {} steps of {}", model, losses.size(), o.optimizer),
                            .curves = {{"loss", losses}},
                            .first_step = output.first_step()});
  fmt::print("plot: {}\n", o.plot);
}

}  // namespace

TrainTexts read_texts(const Options& options, const Family& family) {
  const TrainOptions& o = options.train;
  auto tokens = read_tokens(o.data, o.field, family, options.model);
  check_tokens_of(tokens, "--data", o);
  auto held_out = read_tokens(o.eval, o.field, family, options.model, "--eval");
  if (!o.eval.empty()) check_tokens_of(held_out, "--eval", o);
  return {train::Corpus::of(std::move(tokens), o.seq), std::move(held_out)};
}

int run_train(const Options& options, const Family& family, const TrainTexts& texts,
              const dtensor::Communicator& world) {
  const TrainOptions& o = options.train;
  const auto& [corpus, held_out] = texts;
  corpus.check_same(world);  // Batches are distributed without comparing them.
  if (!held_out.empty()) train::Corpus::of(held_out, o.seq).check_same(world);
  if (options.bit_identical) dtensor::BitIdentical::content_hash(at::zeros({1}));  // throws early without libcrypto
  if (options.layout) check_layout(*options.layout, family.config, o.batch, o.seq, world.size());
  const MeshSizes sizes = options.layout ? MeshSizes() : fit_mesh(options.mesh, world.size(), family);
  const auto device = device_flag::type_of(options.device);
  const ModelOptions how{.dtype = options.dtype,
                         .lora = lora_options(o, family.config),
                         .always_mesh = true,
                         .device = device,
                         .layout = options.layout,
                         .bit_identical = options.bit_identical};
  dtensor::manual_seed(init_device_mesh(world, device, {world.size()}), o.seed);
  const Model model = make_model(family, sizes, world, how);
  if (o.from_scratch) {
    model.decoder->reset();
  } else if (!dtensor::is_dry_run()) {
    load_parameters(model, family, options.model, world);
  }
  model.decoder->train();
  Trainer trainer(model, o);
  const train::RunText text{.tokens = static_cast<std::int64_t>(corpus.tokens()),
                            .fingerprint = static_cast<std::int64_t>(corpus.fingerprint())};
  train::RunState state(o, text, model_flags(model, how.lora), world);
  trainer.add_to(state.parts());
  trainer.optimizer().set_steps_done(state.begin());
  train::RunOutput output(o, world.rank() == 0 && !dtensor::is_dry_run());  // a dry run has no losses
  const int left = train_steps(trainer, state, output, corpus, held_out, o);
  output.close();
  if (options.bit_identical) print_content_hash(trainer, world);
  if (world.rank() == 0) plot(o, options.model, output);
  if (left == 0 && !options.out.empty())
    export_folder(model, family, options.model, options.out, world, options.asked_dtype);
  return left;
}

int report_dry_run(const Options& options, const Family& family) {
  Options o = options;
  o.device = "cpu", o.out = "";
  TrainOptions& t = o.train;
  t.steps = 2, t.eval_every = 0;
  t.load = t.save = t.resume = t.plot = t.log = t.tensorboard = "";
  const TrainTexts texts{train::Corpus::of(std::vector<std::int32_t>(static_cast<std::size_t>(t.seq) + 1), t.seq), {}};
  const auto ranks = static_cast<int>(o.layout ? o.layout->ranks() : o.mesh.value_or(MeshSizes{}).ranks());
  const auto report = dtensor::dry_run({.ranks = ranks, .number = 1},
                                       [&](const dtensor::Communicator& world) { run_train(o, family, texts, world); });
  return train::print_dry_run(report, t.dry_run_json, t.memory_limit);
}

}  // namespace llm
