// The program llm.
#include "program.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>

#include "dtensor/launch.h"
#include "generate.h"
#include "logits.h"

namespace llm {
namespace {

Model loaded_model(const Options& options, const Family& family, const dtensor::Communicator& world) {
  const MeshSizes sizes = fit_mesh(options.mesh, world.size(), family);
  Model model = make_model(family, sizes, world, options.dtype);
  load_parameters(model, family, options.model, world);
  return model;
}

void run_logits(const Options& options, const Family& family, const dtensor::Communicator& world) {
  check_tokens(family, options.tokens);
  const at::Tensor logits = logits_of(loaded_model(options, family, world), options.tokens);
  if (world.rank() == 0) write_safetensors(options.out, "logits", logits);
}

std::string joined(const std::vector<std::int64_t>& tokens) { return c10::Join(",", tokens); }

void run_generate(const Options& options, const Family& family, const dtensor::Communicator& world) {
  check_tokens(family, options.tokens, options.sample.max_new_tokens);
  const Model model = loaded_model(options, family, world);
  const auto tokens = generate(model, world, options.tokens, options.sample, family.end_tokens);
  if (world.rank() == 0 && options.sample.print_tokens) fmt::print("{}\n", joined(tokens));
}

// Prints once, whatever the number of processes.
int report_usage_error(const std::string& message) {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID"}) {
    const char* rank = std::getenv(variable);
    if (rank != nullptr && std::string(rank) != "0") return 2;
  }
  std::cerr << "llm: " << message << "\n";
  return 2;
}

int run(int argc, char** argv) {
  std::optional<int> exit_status;
  const Options options = parse_args(argc, argv, exit_status);
  if (exit_status) return *exit_status;
  const Family family = read_family(options.model);
  std::string usage_error;
  const int status = dtensor::launch(argc, argv, [&](dtensor::Communicator world) {
    try {
      if (options.command == Command::logits) run_logits(options, family, world);
      if (options.command == Command::generate) run_generate(options, family, world);
    } catch (const UsageError& error) {  // the same on every rank
      if (world.rank() == 0) usage_error = error.what();
    }
  });
  if (!usage_error.empty()) return report_usage_error(usage_error);
  return status;
}

}  // namespace

int run_program(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const UsageError& error) {
    return report_usage_error(error.what());
  } catch (const std::exception& error) {
    std::cerr << "llm: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace llm
