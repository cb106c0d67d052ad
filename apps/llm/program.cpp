// The program llm.
#include "program.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <atomic>
#include <iostream>

#include "device_flag.h"
#include "dtensor/launch.h"
#include "llm/commands/export.h"
#include "llm/commands/generate.h"
#include "llm/commands/logits.h"
#include "llm/commands/train.h"
#include "llm/text/text.h"
#include "llm/text/text_stream.h"
#include "train/output/output.h"
#include "train/signals.h"

namespace llm {
namespace {

Model loaded_model(const Options& options, const Family& family, const dtensor::Communicator& world) {
  const MeshSizes sizes = fit_mesh(options.mesh, world.size(), family);
  Model model = make_model(
      family, sizes, world,
      {.dtype = options.dtype, .device = device_flag::type_of(options.device), .bit_identical = options.bit_identical});
  load_parameters(model, family, options.model, world);
  return model;
}

void run_logits(const Options& options, const Family& family, const dtensor::Communicator& world) {
  check_tokens(family, options.tokens);
  const at::Tensor logits = logits_of(loaded_model(options, family, world), options.tokens);
  if (world.rank() == 0) write_safetensors(options.out, "logits", logits);
}

void run_generate(const Options& options, const Family& family, const dtensor::Communicator& world,
                  const tokenizer::Tokenizer* tokenizer) {
  check_tokens(family, options.tokens, options.sample.max_new_tokens);
  const Model model = loaded_model(options, family, world);
  const bool tells = world.rank() == 0;
  std::optional<TextStream> stream;
  if (tells && tokenizer != nullptr) {
    std::cout << options.prompt << std::flush;
    stream.emplace(*tokenizer, options.tokens);
  }
  const auto report = [&](std::int64_t token) {
    if (stream) std::cout << stream->add(token) << std::flush;
  };
  const auto tokens = generate(model, world, options.tokens, options.sample, family.end_tokens, report);
  if (!tells) return;
  if (stream) std::cout << stream->finish() << "\n";
  if (tokenizer == nullptr || options.sample.print_tokens) std::cout << c10::Join(",", tokens) << std::endl;
}

void run_export(const Options& options, const Family& family, const dtensor::Communicator& world) {
  Options exact = options;
  if (!options.asked_dtype) exact.dtype = widest_stored(options.model);
  const Model model = loaded_model(exact, family, world);
  export_folder(model, family, options.model, options.out, world, options.asked_dtype);
}

// Returns the signal that stopped the training, or 0.
int run_command(const Options& requested, const Family& family, const dtensor::Communicator& world,
                const tokenizer::Tokenizer* tokenizer, const std::optional<TrainTexts>& texts) {
  Options options = requested;
  options.device = device_flag::resolve(requested.device, world.backend_name());
  const std::string error = device_flag::find_error(options.device, world.backend_name());
  if (!error.empty()) throw UsageError(error);
  switch (options.command) {
    case Command::logits:
      return run_logits(options, family, world), 0;
    case Command::generate:
      return run_generate(options, family, world, tokenizer), 0;
    case Command::train:
      return run_train(options, family, *texts, world);
    case Command::exports:
      return run_export(options, family, world), 0;
  }
  return 0;
}

// Checks outputs before anything is read.
void check_outputs(const Options& options) {
  const bool folder = options.command == Command::train || options.command == Command::exports;
  if (folder && !options.out.empty()) check_export(options.model, options.out);
  if (options.command == Command::logits) train::check_writable("--out", options.out);
  check_run_files(options.train);
}

void check_weights(const Options& options) {
  if (options.train.from_scratch || has_weights(options.model)) return;
  throw UsageError(fmt::format("--model: {} has no file of weights{}", options.model,
                               options.command == Command::train ? "; --from-scratch initializes them" : ""));
}

int run(int argc, char** argv) {
  std::optional<int> exit_status;
  Options options = parse_args(argc, argv, exit_status);
  if (exit_status) return dtensor::finish_output(*exit_status);
  const Family family = read_family(options.model);
  if (!family.plan_only.empty()) {
    throw UsageError(fmt::format("{}/config.json: `llm` does not support {} of model_type '{}'; `plan` does",
                                 options.model, family.plan_only, family.name));
  }
  check_outputs(options);
  std::optional<TrainTexts> texts;
  if (options.command == Command::train) {
    check_lora_targets(options.train, family.config);
    if (options.train.dry_run) return dtensor::finish_output(report_dry_run(options, family));
  }
  check_weights(options);
  if (options.command == Command::train) texts = read_texts(options, family);
  std::optional<tokenizer::Tokenizer> tokenizer;
  if (!options.prompt.empty()) {
    tokenizer = read_tokenizer(options.model);
    const auto ids = tokenizer->encode(options.prompt, /*frame=*/true);
    options.tokens.assign(ids.begin(), ids.end());
  }
  std::string usage_error;
  std::atomic<int> left{0};
  std::optional<train::TerminationSignals> signals;  // Without a folder to save to, signals end the program as usual.
  if (!options.train.save.empty()) signals.emplace();
  const int status = dtensor::launch(argc, argv, [&](dtensor::Communicator world) {
    try {
      left = run_command(options, family, world, tokenizer ? &*tokenizer : nullptr, texts);
    } catch (const UsageError& error) {  // The same on every rank.
      if (world.rank() == 0) usage_error = error.what();
    }
  });
  if (!usage_error.empty()) return train::report_usage_error("llm", usage_error);
  return status == 0 && left != 0 ? train::kExitRequeue : status;
}

}  // namespace

int run_program(int argc, char** argv) {
  dtensor::report_interrupt("llm");
  try {
    return run(argc, argv);
  } catch (const UsageError& error) {
    return train::report_usage_error("llm", error.what());
  } catch (const std::exception& error) {
    std::cerr << "llm: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace llm
