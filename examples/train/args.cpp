// The command line: what may be asked for, its defaults, and how a mistake is reported.
#include "args.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>

namespace train {

std::string MeshShape::str() const { return fmt::format("replicate={}, shard={}, tp={}", replicate, shard, tp); }

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

namespace {

std::int64_t parse_axis_size(const std::string& text, const std::string& entry) {
  const bool digits = !text.empty() && text.size() < 7 && text.find_first_not_of("0123456789") == std::string::npos;
  const std::int64_t size = digits ? std::stoll(text) : 0;
  if (size < 1) throw UsageError("--mesh: '" + entry + "' is not NAME=SIZE with a size of at least 1");
  return size;
}

}  // namespace

MeshShape parse_mesh(const std::string& text) {
  MeshShape shape;
  std::map<std::string, std::int64_t*> axes = {
      {"replicate", &shape.replicate}, {"shard", &shape.shard}, {"tp", &shape.tp}};
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const std::size_t equal = std::min(entry.find('='), entry.size());
    const std::string name = entry.substr(0, equal);
    const auto axis = axes.find(name);
    if (axis == axes.end()) {
      throw UsageError("--mesh: '" + name + "' is not one of replicate, shard, tp, or is given twice");
    }
    *axis->second = parse_axis_size(equal < entry.size() ? entry.substr(equal + 1) : "", entry);
    axes.erase(axis);
  }
  return shape;
}

MeshShape fit_mesh(const Options& options, int ranks) {
  if (!options.mesh) return {.shard = ranks};
  if (options.mesh->size() != ranks) {
    throw UsageError(fmt::format("the mesh {} has {} ranks but the program runs on {}", options.mesh->str(),
                                 options.mesh->size(), ranks));
  }
  return *options.mesh;
}

namespace {

void add_job_flags(CLI::App& app, Options& o, std::string& mesh, std::string& dtype) {
  app.add_option("--mesh", mesh, "sizes of the mesh axes, e.g. replicate=1,shard=2,tp=2");
  app.add_option("--ranks", o.ranks, "thread ranks of a single process")->check(CLI::Range(1, 1024));
  app.add_option("--backend", o.backend, "insist on one")->check(CLI::IsMember({"local", "mpi", "nccl"}));
  app.add_option("--model", o.model, "tiny or gpt-153m")->check(CLI::IsMember({"tiny", "gpt-153m"}));
  app.add_option("--hidden", o.hidden, "another width of the model (a multiple of its heads)")
      ->check(CLI::Range(1, 1 << 20));
  app.add_flag("--loss-parallel", o.loss_parallel, "cross entropy on logits that stay sharded by class over tp");
  app.add_option("--parallel", o.parallel, "fsdp: blocks gathered and reduced as one; plain: each parameter by itself")
      ->check(CLI::IsMember({"fsdp", "plain"}))
      ->capture_default_str();
  app.add_option("--reshard-after-forward", o.reshard, "fsdp: true, false, or the number of ranks that keep a copy")
      ->check(CLI::IsMember({"true", "false"}) | CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--mixed-precision", [&o](const std::string& text) { o.bf16 = text == "bf16"; },
         "bf16: compute in bfloat16 (but for layer norms and the loss), keep and reduce in --dtype")
      ->check(CLI::IsMember({"bf16", "none"}));
  app.add_flag("--sequence-parallel", o.sequence_parallel,
               "activations between blocks split along the sequence over tp");
  app.add_flag("--checkpoint-activations", o.checkpoint_activations, "compute each block again in backward");
  app.add_option("--dropout", o.dropout, "probability")->check(CLI::Range(0.0, 0.99));
  app.add_option("--dtype", dtype, "float32, float64 or bfloat16")
      ->check(CLI::IsMember({"float32", "float64", "bfloat16"}));
  app.add_flag("--compare", o.compare, "train on one device too and compare the loss curves");
}

void add_training_flags(CLI::App& app, Options& o) {
  app.add_option("--steps", o.steps, "optimizer steps")->check(CLI::Range(1, 100'000'000))->capture_default_str();
  app.add_option("--batch", o.batch, "sequences a step, over all ranks")->check(CLI::Range(1, 1 << 20));
  app.add_option("--grad-accum", o.grad_accum, "pieces of a batch, whose gradients are reduced once")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--seq", o.seq, "tokens a sequence")->check(CLI::Range(1, 1 << 20));
  app.add_option("--seed", o.seed, "of parameters, batches and dropout")->capture_default_str();
  app.add_option("--optimizer", o.optimizer, "adamw, sgd, shampoo or muon")
      ->check(CLI::IsMember({"adamw", "sgd", "shampoo", "muon"}))
      ->capture_default_str();
  app.add_option("--lr", o.lr, "learning rate")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--warmup", o.warmup, "steps of linear warm-up")
      ->check(CLI::Range(0, 100'000'000))
      ->capture_default_str();
  app.add_option("--clip", o.clip, "largest gradient norm; 0: none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--data", o.data, "text files or folders; default: LibTorch's headers");
  app.add_option("--save", o.save, "write a checkpoint to this folder at the end");
  app.add_option("--save-every", o.save_every, "and after every so many steps, in the background")
      ->check(CLI::Range(1, 100'000'000));
  app.add_option("--load", o.load, "go on from this checkpoint, saved on any mesh, up to --steps in all");
  app.add_option("--log", o.log, "write one JSON line a step to this file");
  app.add_option("--plot", o.plot, "write the loss curve to this SVG file");
  app.add_flag("--memory", o.memory, "fsdp: print the memory of rank 0, as predicted and as measured");
  app.add_option("--trace", o.trace, "write a Chrome trace of operators and collectives to this JSON file");
}

Dtype parse_dtype(const std::string& text) {
  for (const Dtype dtype : {Dtype::float32, Dtype::float64, Dtype::bfloat16}) {
    if (text == to_string(dtype)) return dtype;
  }
  throw UsageError("--dtype: unknown " + text);
}

void settle_sizes(Options& o) {
  const bool tiny = o.model == "tiny";
  if (o.batch == 0) o.batch = tiny ? 8 : 4;
  if (o.seq == 0) o.seq = tiny ? 64 : 32;
  if (o.bf16 && o.parallel != "fsdp") throw UsageError("--mixed-precision bf16 needs --parallel fsdp");
  if (o.memory && o.parallel != "fsdp") throw UsageError("--memory needs --parallel fsdp");
  if (o.grad_accum > o.batch) throw UsageError("--grad-accum: more pieces than sequences in a batch");
  if (!o.mesh || !o.ranks) return;
  if (*o.ranks != o.mesh->size()) fit_mesh(o, *o.ranks);
}

}  // namespace

Options parse_args(int argc, char** argv, std::optional<int>& exit_status, const std::function<void(CLI::App&)>& more) {
  Options options;
  std::string mesh, dtype = "float32";
  CLI::App app("Trains a GPT, written in plain ATen for one device, on any mesh of ranks.", "train");
  add_job_flags(app, options, mesh, dtype);
  add_training_flags(app, options);
  if (more) more(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    exit_status = 0;
    return options;
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  if (app.count("--mesh") > 0) options.mesh = parse_mesh(mesh);
  options.dtype = parse_dtype(dtype);
  settle_sizes(options);
  return options;
}

int report_usage_error(const std::string& message) {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID"}) {
    const char* rank = std::getenv(variable);
    if (rank != nullptr && std::string(rank) != "0") return 2;
  }
  std::cerr << "train: " << message << "\n";
  return 2;
}

}  // namespace train
