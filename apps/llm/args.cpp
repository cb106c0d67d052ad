// The command line.
#include "args.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <sstream>

#include "command_line.h"
#include "device_flag.h"
#include "train/layouts/plan_file.h"

namespace llm {

std::string MeshSizes::str() const {
  std::string text;
  const std::pair<const char*, std::int64_t> axes[] = {{"dp", dp}, {"shard", shard}, {"ep", ep}, {"tp", tp}};
  for (const auto& [name, size] : axes) {
    if (size > 1) text += fmt::format("{}{}={}", text.empty() ? "" : ",", name, size);
  }
  return text.empty() ? "one rank" : text;
}

MeshSizes parse_mesh(const std::string& text) {
  MeshSizes sizes;
  std::map<std::string, std::int64_t*> axes = {
      {"dp", &sizes.dp}, {"shard", &sizes.shard}, {"ep", &sizes.ep}, {"tp", &sizes.tp}};
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const std::size_t equal = std::min(entry.find('='), entry.size());
    const auto axis = axes.find(entry.substr(0, equal));
    if (axis == axes.end()) {
      throw UsageError(fmt::format("--mesh: expected each of dp, shard, ep, tp at most once, got '{}'", entry));
    }
    const std::string size = equal < entry.size() ? entry.substr(equal + 1) : "";
    const bool digits = !size.empty() && size.size() < 6 && size.find_first_not_of("0123456789") == std::string::npos;
    *axis->second = digits ? std::stoll(size) : 0;
    if (*axis->second < 1)
      throw UsageError("--mesh: expected NAME=SIZE with a size of at least 1, got '" + entry + "'");
    axes.erase(axis);
  }
  return sizes;
}

namespace {

struct Texts {
  std::string mesh, dtype = "float32", ranks, backend;
};

void add_common(CLI::App& app, Options& o, Texts& texts) {
  app.add_option("--model", o.model, "a folder with config.json and safetensors files")->required();
  app.add_option("--mesh", texts.mesh, "sizes of the mesh axes, e.g. dp=1,shard=2,ep=1,tp=2");
  app.add_option("--ranks", texts.ranks, "thread ranks of a single process; default: the size of --mesh");
  app.add_option("--backend", texts.backend, "insist on one")->check(CLI::IsMember({"local", "mpi", "nccl", "socket"}));
  device_flag::add(app, o.device);
  app.add_option("--dtype", texts.dtype, "dtype of the computation; tensors of other dtypes are converted")
      ->check(CLI::IsMember({"float32", "float64", "bfloat16", "float16"}))
      ->capture_default_str();
}

void add_bit_identical(CLI::App& app, Options& o) {
  app.add_flag("--bit-identical", o.bit_identical, "the same bits on every mesh, of a prompt in any pieces");
}

void add_tokens(CLI::App& app, Options& o) {
  auto* tokens = app.add_option("--tokens", o.tokens, "the prompt as token ids: 1,2,3")->delimiter(',');
  app.add_option("--prompt", o.prompt, "the prompt as text; needs FOLDER/tokenizer.json")->excludes(tokens);
}

void add_generate(CLI::App& app, SampleOptions& s) {
  app.option_defaults()->group("Generation");
  app.add_option("--max-new-tokens", s.max_new_tokens, "maximum number of new tokens")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--temperature", s.temperature,
                 "0: the most likely token; otherwise the token is drawn after dividing the logits by it")
      ->check(command_line::non_negative())
      ->capture_default_str();
  app.add_option("--top-p", s.top_p, "draw from the most likely tokens whose probabilities sum up to this")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--seed", s.seed, "seed of the draws; the text is the same on every mesh")->capture_default_str();
  app.add_option("--split-cache", s.split_cache, "split the cached keys and values over the ranks of this axis")
      ->check(CLI::IsMember({"dp", "shard"}));
  app.add_flag("--print-tokens", s.print_tokens, "the new tokens' ids, separated by commas, as the last line");
  app.add_flag("--ignore-end", s.ignore_end, "continue after an end-of-text token");
}

void add_text_flags(CLI::App& app, TrainOptions& t) {
  app.add_option("--data", t.data, "text files, folders of them, or JSONL files");
  app.add_option("--text-field", t.field, "field of each line of a JSONL file")->capture_default_str();
  app.add_option("--eval", t.eval, "the same, for evaluation");
  app.add_option("--eval-every", t.eval_every, "steps between evaluations; default: only at the end")
      ->check(CLI::Range(1, 1 << 30));
}

void add_training_flags(CLI::App& app, TrainOptions& t) {
  app.add_option("--steps", t.steps, "optimizer steps")->check(CLI::Range(1, 1 << 30))->capture_default_str();
  app.add_option("--batch", t.batch, "sequences in a step, over all ranks")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--seq", t.seq, "tokens a sequence")->check(CLI::Range(2, 1 << 20))->capture_default_str();
  app.add_option("--lr", t.lr, "largest learning rate")->check(command_line::positive())->capture_default_str();
  app.add_option("--warmup", t.warmup, "steps of linear warm-up")->check(CLI::Range(0, 1 << 30))->capture_default_str();
  app.add_option("--schedule", t.schedule, "learning rate schedule after warm-up: constant, linear, cosine or wsd")
      ->check(CLI::IsMember({"constant", "linear", "cosine", "wsd"}))
      ->capture_default_str();
  app.add_option("--weight-decay", t.weight_decay, "AdamW's")
      ->check(command_line::non_negative())
      ->capture_default_str();
  app.add_option("--clip", t.clip, "maximum gradient norm; 0: no clipping")
      ->check(command_line::non_negative())
      ->capture_default_str();
  app.add_option("--seed", t.seed, "seed of batches and adapters")->capture_default_str();
}

void add_adapter_flags(CLI::App& app, TrainOptions& t) {
  app.add_option("--lora-rank", t.lora_rank, "train low-rank adapters of this rank only; 0: all parameters")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str();
  app.add_option("--lora-alpha", t.lora_alpha, "default: twice the rank")->check(command_line::positive());
  app.add_option("--lora-targets", t.lora_targets,
                 "projections with adapters; default: q_proj and v_proj, or q_b_proj and kv_b_proj after a bottleneck")
      ->delimiter(',');
}

void add_layout_flags(CLI::App& app, TrainOptions& t) {
  app.add_option(
         "--plan", t.plan,
         "run in the layout of this file, which `plan search --out` wrote; --batch and --seq default to its own")
      ->excludes("--mesh");
  app.add_flag("--from-scratch", t.from_scratch,
               "initialize the parameters instead of reading them; --model needs config.json only");
}

void add_report_flags(CLI::App& app, TrainOptions& t) {
  add_run_flags(app, t);
  app.add_flag("--dry-run", t.dry_run,
               "report memory and collectives of rank 0 without starting it; needs only config.json of the model");
  app.add_option("--dry-run-json", t.dry_run_json, "with --dry-run: write the report to this JSON file");
  app.add_option("--memory-limit", t.memory_limit,
                 "with --dry-run: memory of a rank in GB; status 1 if it is too small")
      ->check(command_line::positive());
}

void add_train(CLI::App& app, TrainOptions& t) {
  command_line::add_groups(app, t,
                           {{"Texts", add_text_flags},
                            {"Training", add_training_flags},
                            {"Layout and parameters", add_layout_flags},
                            {"Adapters", add_adapter_flags},
                            {"Files and reports", add_report_flags}});
}

// Flags whose results have no such form. The scope itself refuses operators.
void check_bit_identical(const Options& o) {
  if (!o.bit_identical) return;
  if (o.train.dry_run) throw UsageError("--bit-identical does not support --dry-run");
  if (!o.sample.split_cache.empty()) throw UsageError("--bit-identical does not support --split-cache");
  if (o.layout && o.layout->microbatches > 2) {
    throw UsageError(
        fmt::format("--bit-identical: expected a --plan of one or two microbatches, got {}", o.layout->microbatches));
  }
}

void check(const Options& o) {
  const bool needs_prompt = o.command == Command::logits || o.command == Command::generate;
  if (needs_prompt && o.tokens.empty() && o.prompt.empty()) throw UsageError("--tokens or --prompt is required");
  check_bit_identical(o);
  check_run_flags(o.train);
}

// Flags that would have no effect.
void check_train(const CLI::App& train, const TrainOptions& t) {
  for (const char* flag : {"--lora-alpha", "--lora-targets"}) {
    if (t.lora_rank == 0 && train.count(flag) > 0) throw UsageError(fmt::format("{} needs --lora-rank", flag));
  }
  if (train && t.data.empty() && !t.dry_run) throw UsageError("--data is required");
  if (!t.dry_run_json.empty() && !t.dry_run) throw UsageError("--dry-run-json needs --dry-run");
  if (t.memory_limit > 0 && !t.dry_run) throw UsageError("--memory-limit needs --dry-run");
  if (t.eval_every > 0 && t.eval.empty()) throw UsageError("--eval-every needs --eval");
}

void use_plan(const CLI::App& train, Options& o) {
  if (o.train.plan.empty()) return;
  const auto plan = train::read_plan(o.train.plan);
  o.layout = plan.layout;
  if (plan.batch > 0 && train.count("--batch") == 0) o.train.batch = plan.batch;
  if (plan.seq > 0 && train.count("--seq") == 0) o.train.seq = plan.seq;
  if (plan.layout.pp > 1 && !o.train.eval.empty()) throw UsageError("--eval does not support stages (pp) of --plan");
  o.train.optimizer = plan.layout.optimizer;
  const auto parameters = plan.layout.bf16_parameters ? at::kBFloat16 : at::kFloat;
  if (plan.layout.bf16 && o.asked_dtype.value_or(parameters) != parameters) {
    throw UsageError(fmt::format("--plan: the layout computes in bfloat16 with {} parameters; leave out --dtype",
                                 plan.layout.bf16_parameters ? "bfloat16" : "float32"));
  }
  if (plan.layout.bf16_parameters) o.dtype = at::kBFloat16;
}

void check_generate(const CLI::App& generate, const SampleOptions& s) {
  for (const char* flag : {"--top-p", "--seed"}) {
    if (s.temperature == 0 && generate.count(flag) > 0) {
      throw UsageError(fmt::format("{} needs a --temperature above 0; with 0 the most likely token is chosen", flag));
    }
  }
}

at::ScalarType dtype_of(const std::string& name) {
  static const std::map<std::string, at::ScalarType> known = {
      {"float32", at::kFloat}, {"float64", at::kDouble}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}};
  return known.at(name);
}

}  // namespace

Options parse_args(int argc, char** argv, std::optional<int>& exit_status) {
  Options o;
  Texts texts;
  CLI::App app("Runs, trains and exports language models from HuggingFace folders, on any mesh of ranks.", "llm");
  app.require_subcommand(1);
  auto* logits = app.add_subcommand("logits", "write the logits of a prompt to a safetensors file");
  auto* generate = app.add_subcommand("generate", "continue a prompt");
  auto* train = app.add_subcommand("train", "train all parameters, or adapters");
  auto* exports = app.add_subcommand("export", "write a folder that transformers loads");
  for (CLI::App* command : {logits, generate, train, exports}) add_common(*command, o, texts);
  for (CLI::App* command : {logits, generate, train}) add_bit_identical(*command, o);
  add_tokens(*logits, o), add_tokens(*generate, o);
  add_generate(*generate, o.sample);
  add_train(*train, o.train);
  logits->add_option("--out", o.out, "the file; its tensor 'logits' is [tokens, vocabulary]")->required();
  train->add_option("--out", o.out, "write the trained model to this folder, as export does");
  exports->add_option("--out", o.out, "the folder")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    exit_status = app.exit(help);
    return o;
  } catch (const CLI::ParseError& error) {
    throw UsageError(command_line::error_text(app, error));
  }
  o.command = *logits ? Command::logits : *generate ? Command::generate : *train ? Command::train : Command::exports;
  for (const CLI::App* command : app.get_subcommands()) train::check_given(*command);
  if (!texts.mesh.empty()) o.mesh = parse_mesh(texts.mesh);
  o.dtype = dtype_of(texts.dtype);
  for (CLI::App* command : app.get_subcommands()) {
    if (command->count("--dtype") > 0) o.asked_dtype = o.dtype;
  }
  use_plan(*train, o);
  check(o);
  check_train(*train, o.train);
  check_generate(*generate, o.sample);
  return o;
}

}  // namespace llm
