// The command `train`.
#include "train.h"

#include <fmt/format.h>

#include <cstdio>

#include "dtensor/random.h"
#include "export.h"
#include "text.h"

namespace llm {
namespace {

void check_tokens_of(const std::vector<std::int32_t>& tokens, const char* flag, const TrainOptions& o) {
  if (static_cast<std::int64_t>(tokens.size()) > o.seq) return;
  throw UsageError(fmt::format("{}: {} tokens are too few for --seq {}", flag, tokens.size(), o.seq));
}

void tell(const StepRecord& r, std::int64_t steps) {
  fmt::print("step {}/{}  loss {:.6f}  lr {:.3g}  gradient norm {:.4g}\n", r.step + 1, steps, r.loss, r.lr,
             r.grad_norm);
  std::fflush(stdout);
}

}  // namespace

void run_train(const Options& options, const Family& family, const dtensor::Communicator& world) {
  const TrainOptions& o = options.train;
  const bool tells = world.rank() == 0;
  auto tokens = read_tokens(o.data, o.field, family, options.model);
  check_tokens_of(tokens, "--data", o);
  const auto corpus = train::Corpus::of(std::move(tokens), o.seq);
  const auto held_out = read_tokens(o.eval, o.field, family, options.model);
  if (!o.eval.empty()) check_tokens_of(held_out, "--eval", o);
  const MeshSizes sizes = fit_mesh(options.mesh, world.size(), family);
  const ModelOptions how{.dtype = options.dtype, .lora = lora_options(o, family.config), .always_mesh = true};
  dtensor::manual_seed(init_device_mesh(world, at::kCPU, {world.size()}), o.seed);
  const Model model = make_model(family, sizes, world, how);
  load_parameters(model, family, options.model, world);
  model.decoder->train();
  Trainer trainer(model, o);
  if (!o.load.empty()) trainer.load(o.load, world);
  const auto judge = [&] {
    if (held_out.empty()) return;
    const double loss = evaluate(trainer, held_out, o);
    if (tells)
      fmt::print("evaluation after {} steps: loss {:.6f}, perplexity {:.4f}\n", trainer.steps_done(), loss,
                 std::exp(loss));
  };
  while (trainer.steps_done() < o.steps) {
    const auto record = trainer.step(corpus.batch(o.seed, trainer.steps_done(), {o.batch, o.seq}));
    if (tells) tell(record, o.steps);
    const std::int64_t done = trainer.steps_done();
    if (o.eval_every > 0 && done % o.eval_every == 0 && done < o.steps) judge();
    if (!o.save.empty() && (done == o.steps || (o.save_every > 0 && done % o.save_every == 0)))
      trainer.save(o.save, world);
  }
  judge();
  if (!options.out.empty()) export_folder(model, family, options.model, options.out, world, options.asked_dtype);
}

}  // namespace llm
