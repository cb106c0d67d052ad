// The command line: flags, defaults and errors.
#include "args.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>

#include "command_line.h"
#include "device_flag.h"
#include "train/bits/bit_flags.h"
#include "train/layouts/dry_run.h"
#include "train/layouts/search.h"
#include "train/model/expert_flags.h"

namespace train {

const char* to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::float32:
      return "float32";
    case Dtype::float64:
      return "float64";
    case Dtype::bfloat16:
      return "bfloat16";
  }
  return "?";
}

const char* to_string(Kind kind) { return kind == Kind::dense ? "train" : "moe"; }

namespace {

void add_job_flags(CLI::App& app, Options& o, std::string& mesh, std::string& dtype) {
  app.add_option("--mesh", mesh, "sizes of the mesh axes, e.g. replicate=1,shard=2,tp=2");
  app.add_option("--ranks", o.ranks, "thread ranks of a single process")->check(CLI::Range(1, 1024));
  app.add_option("--backend", o.backend, "insist on one")->check(CLI::IsMember({"local", "mpi", "nccl", "socket"}));
  device_flag::add(app, o.device);
  app.add_option("--peak-tflops", o.peak_tflops,
                 "peak of all devices together in TFLOP/s; prints the model FLOPs utilization (MFU)")
      ->check(command_line::positive());
  app.add_option("--dtype", dtype, "float32, float64 or bfloat16")
      ->check(CLI::IsMember({"float32", "float64", "bfloat16"}));
  app.add_flag("--compare", o.compare, "also train on one device and compare the loss curves");
  app.add_option("--seed", o.seed, "seed of parameters, batches and dropout")->capture_default_str();
}

void add_model_flags(CLI::App& app, Options& o) {
  app.add_option("--model", o.model, "tiny or gpt-153m")->check(CLI::IsMember({"tiny", "gpt-153m"}));
  app.add_option("--hidden", o.hidden, "hidden size, a multiple of the model's heads; default: the model's")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--layers", o.layers, "blocks; default: the model's")->check(CLI::Range(1, 1 << 20));
  app.add_flag("--rope", o.rope, "rotary positions");
  app.add_option("--kv-heads", o.kv_heads,
                 "heads of keys and values, a divisor of the heads; default: the number of heads")
      ->check(CLI::Range(1, 1 << 10));
  app.add_option("--predict-tokens", o.predict_tokens, "number of next tokens to predict, each with a separate head")
      ->check(CLI::Range(1, 1 << 10));
  app.add_flag("--documents", o.documents, "pack documents into sequences; attention does not cross documents");
  app.add_option("--dropout", o.dropout, "probability")->check(CLI::Range(0.0, 0.99));
}

// Accepts decimal digits only; CLI11 would accept other bases as well.
std::string reshard_error(const std::string& text) {
  if (text == "true" || text == "false") return "";
  const bool digits = !text.empty() && text.size() < 8 && text.find_first_not_of("0123456789") == std::string::npos;
  return digits && std::stoll(text) > 0 ? "" : "expected true, false or a number of ranks, got '" + text + "'";
}

void add_parallel_flags(CLI::App& app, Options& o) {
  app.add_option("--parallel", o.parallel,
                 "fsdp: blocks are gathered and reduced as units; plain: each parameter separately")
      ->check(CLI::IsMember({"fsdp", "plain"}))
      ->capture_default_str();
  app.add_option("--reshard-after-forward", o.reshard,
                 "for fsdp: true, false, or the number of ranks that together keep a copy")
      ->check(reshard_error)
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--mixed-precision", [&o](const std::string& text) { o.bf16 = text == "bf16"; },
         "bf16: compute in bfloat16 (except layer norms and the loss), store and reduce in --dtype")
      ->check(CLI::IsMember({"bf16", "none"}));
  app.add_flag("--fused-loss", o.fused_loss,
               "compute logits and loss together, in the dtype of the activations, on classes that stay sharded");
  app.add_flag("--loss-parallel", o.loss_parallel,
               "compute the cross entropy on logits that are sharded by class over tp");
  app.add_flag("--sequence-parallel", o.sequence_parallel,
               "split activations between blocks along the sequence over tp");
  app.add_flag("--float8", o.float8, "multiply in float8 in the blocks");
  app.add_flag("--checkpoint-activations", o.checkpoint_activations, "recompute each block in backward");
  app.add_option("--cp-strategy", o.cp_strategy, "strategy of attention over sequences that cp splits")
      ->check(CLI::IsMember({"auto", "ring", "gather", "ulysses"}))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--sequence-placement", [&o](const std::string& text) { o.zigzag_sequence = text == "zigzag"; },
         "over cp: zigzag (each rank a chunk from the head and one from the tail) or contiguous")
      ->check(CLI::IsMember({"zigzag", "contiguous"}));
}

void add_pipeline_flags(CLI::App& app, Options& o) {
  app.add_option(
         "--schedule", o.schedule,
         "for a mesh with pp: gpipe, 1f1b, interleaved, bfs, zb-h1, zbv, dualpipev, or a file with a schedule as text")
      ->capture_default_str();
  app.add_option("--microbatches", o.microbatches, "microbatches of a batch in a pipeline")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--chunks", o.chunks, "stages of each pipeline rank; default: the schedule's")
      ->check(CLI::Range(1, 1 << 10));
  app.add_option("--schedule-plot", o.schedule_plot,
                 "write the measured times of the pipeline's last step to this SVG file");
}

void add_training_flags(CLI::App& app, Options& o) {
  app.add_option("--steps", o.steps, "optimizer steps")->check(CLI::Range(1, 100'000'000))->capture_default_str();
  app.add_option("--batch", o.batch, "sequences in a step, over all ranks")->check(CLI::Range(1, 1 << 20));
  app.add_option("--grad-accum", o.grad_accum, "parts of a batch for gradient accumulation")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option_function<std::string>(
         "--accumulate", [&o](const std::string& text) { o.accumulate_sharded = text == "sharded"; },
         "gradients of the parts of a batch, with --parallel fsdp and without a pipeline: sharded (each part's are "
         "reduce-scattered) or unsharded (reduced once, as under no_sync)")
      ->check(CLI::IsMember({"sharded", "unsharded"}));
  app.add_option("--seq", o.seq, "tokens a sequence")->check(CLI::Range(1, 1 << 20));
  app.add_option("--optimizer", o.optimizer, "adamw, sgd, shampoo or muon")
      ->check(CLI::IsMember({"adamw", "sgd", "shampoo", "muon"}))
      ->capture_default_str();
  app.add_option("--shampoo-frequency", o.shampoo.frequency, "steps between inverse roots")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--shampoo-start", o.shampoo.start, "first preconditioned step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--shampoo-eps", o.shampoo.eps, "added to the factors before computing roots")
      ->check(command_line::positive())
      ->capture_default_str();
  app.add_option("--shampoo-graft-eps", o.shampoo.graft_eps, "added to the denominator of the grafting")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--shampoo-grafting", o.shampoo.grafting, "grafting of the step's length: adam or none")
      ->check(CLI::IsMember({"adam", "none"}))
      ->capture_default_str();
  app.add_option("--lr", o.lr, "learning rate")->check(command_line::positive())->capture_default_str();
  app.add_option("--warmup", o.warmup, "steps of linear warm-up")
      ->check(CLI::Range(0, 100'000'000))
      ->capture_default_str();
  app.add_option("--clip", o.clip, "maximum gradient norm; 0: no clipping")
      ->check(command_line::non_negative())
      ->capture_default_str();
}

void add_file_flags(CLI::App& app, Options& o) {
  app.add_option("--data", o.data, "text files or folders; default: LibTorch's headers");
  app.add_option("--tokenizer", o.tokenizer,
                 "a tokenizer.json, a merges.txt or a folder with either, or 'shipped'; default: bytes");
  add_run_flags(app, o);
  app.add_flag(
      "--memory", o.memory,
      "for fsdp: print the predicted and measured memory of rank 0 (with pp: of one rank of each pipeline rank)");
  app.add_option("--memory-plot", o.memory_plot,
                 "write the memory of rank 0 by kind during the last step to this SVG file");
  add_dry_run_flags(app, o);
  app.add_option("--trace", o.trace, "write a Chrome trace of operators and collectives to this JSON file");
}

Dtype parse_dtype(const std::string& text) {
  for (const Dtype dtype : {Dtype::float32, Dtype::float64, Dtype::bfloat16}) {
    if (text == to_string(dtype)) return dtype;
  }
  throw UsageError("--dtype: unknown " + text);
}

void check_sequence(const CLI::App& app, const Options& o) {
  for (const char* flag : {"--cp-strategy", "--sequence-placement"}) {
    const bool split = o.mesh && o.mesh->cp > 1;
    if (!split && app.count(flag) > 0) throw UsageError(fmt::format("{} needs a --mesh with cp", flag));
  }
}

// Flags that need stages, and flags that exclude them.
void check_pipeline(const CLI::App& app, const Options& o) {
  const bool stages = o.mesh && o.mesh->pp > 1;
  for (const char* flag : {"--schedule", "--microbatches", "--chunks", "--schedule-plot"}) {
    if (!stages && app.count(flag) > 0) throw UsageError(fmt::format("{} needs a --mesh with pp", flag));
  }
  if (!stages) return;
  if (o.parallel != "fsdp") throw UsageError("stages (pp) need --parallel fsdp");
  if (o.microbatches > o.batch / o.grad_accum) {
    throw UsageError(o.grad_accum == 1
                         ? "--microbatches: expected at most the number of sequences in a batch"
                         : "--microbatches: expected at most the number of sequences in a part of --grad-accum");
  }
}

void check_optimizer(const CLI::App& app, const Options& o) {
  for (const char* flag :
       {"--shampoo-frequency", "--shampoo-start", "--shampoo-eps", "--shampoo-graft-eps", "--shampoo-grafting"}) {
    if (o.optimizer != "shampoo" && app.count(flag) > 0) {
      throw UsageError(fmt::format("{} needs --optimizer shampoo", flag));
    }
  }
  if (o.shampoo.grafting == "none" && app.count("--shampoo-graft-eps") > 0) {
    throw UsageError("--shampoo-graft-eps needs --shampoo-grafting adam");
  }
}

void resolve_sizes(Options& o) {
  const bool tiny = o.model == "tiny";
  if (o.batch == 0) o.batch = tiny ? 8 : 4;
  if (o.seq == 0) o.seq = tiny ? 64 : 32;
  if (o.bf16 && o.parallel != "fsdp") throw UsageError("--mixed-precision bf16 needs --parallel fsdp");
  if (o.memory && o.parallel != "fsdp") throw UsageError("--memory needs --parallel fsdp");
  if (o.reshard != "true" && o.parallel != "fsdp") throw UsageError("--reshard-after-forward needs --parallel fsdp");
  check_run_flags(o);
  if (o.grad_accum == 1 && !o.accumulate_sharded) throw UsageError("--accumulate unsharded needs --grad-accum");
  if (o.grad_accum > o.batch) throw UsageError("--grad-accum: expected at most the number of sequences in a batch");
  if (!o.mesh || !o.ranks) return;
  if (*o.ranks != o.mesh->size()) fit_mesh(o, *o.ranks);
}

}  // namespace

std::string model_flags(const Options& options) {
  std::string flags = options.rope ? "--rope" : "no --rope";
  if (!options.experts) return flags;
  const ExpertFlags& e = *options.experts;
  const char* chosen_by = e.balance == "forced"   ? "--balance forced"
                          : e.router == "experts" ? "--router experts"
                                                  : "--router tokens";
  flags += fmt::format(" --top-k {} {}", e.top_k, chosen_by);
  if (e.groups > 1) flags += fmt::format(" --groups {} --top-groups {}", e.groups, e.top_groups);
  if (e.score_before) flags += " --score-before-experts";
  return flags;
}

Options parse_args(Kind kind, int argc, char** argv, std::optional<int>& exit_status) {
  Options options;
  std::string mesh, dtype = "float32";
  const bool dense = kind == Kind::dense;
  CLI::App app(dense ? "Trains a GPT, written in plain ATen for one device, on any mesh of ranks."
                     : "Trains a mixture-of-experts language model, written for one device, on any mesh of ranks.",
               to_string(kind));
  add_job_flags(app, options, mesh, dtype);
  command_line::add_groups(app, options,
                           {{"Model", add_model_flags},
                            {"Parallelism", add_parallel_flags},
                            {"Pipeline", add_pipeline_flags},
                            {"Training", add_training_flags},
                            {"The same bits", add_bit_flags},
                            {"Files and reports", add_file_flags}});
  app.option_defaults()->group("Experts");
  if (!dense) add_expert_flags(app, options.experts.emplace());
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    exit_status = 0;
    return options;
  } catch (const CLI::ParseError& error) {
    throw UsageError(command_line::error_text(app, error));
  }
  check_given(app);
  if (app.count("--mesh") > 0) options.mesh = parse_mesh(mesh);
  options.dtype = parse_dtype(dtype);
  options = with_plan(std::move(options));
  resolve_sizes(options);
  check_pipeline(app, options);
  check_sequence(app, options);
  check_dry_run(options);
  check_optimizer(app, options);
  check_bit_flags(app, options);
  if (options.experts) check_experts(app, options);
  return options;
}

}  // namespace train
