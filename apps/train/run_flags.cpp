// Flags that several programs have, and their checks.
#include "run_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "dtensor/checkpoint.h"
#include "train/output/output.h"

namespace train {

void add_run_flags(CLI::App& app, RunFlags& f) {
  app.add_option("--save", f.save, "write a checkpoint to this folder at the end");
  app.add_option("--save-every", f.save_every, "also save in the background after every N steps")
      ->check(CLI::Range(1, 100'000'000));
  app.add_option("--keep", f.keep,
                 "make --save a folder with the newest N checkpoints (step-00000050, ...) and a link 'latest'")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--load", f.load, "resume from this checkpoint, saved on any mesh, and train up to step --steps");
  app.add_option("--resume", f.resume,
                 "resume from the newest complete checkpoint of --save (or of the given folder), if any; damaged "
                 "checkpoints are skipped")
      ->expected(0, 1)
      ->default_str("latest");
  app.add_option("--log", f.log, "write one JSON line per step to this file; a resumed run appends to it");
  app.add_option("--plot", f.plot, "write the loss curve to this SVG file");
  app.add_option("--tensorboard", f.tensorboard, "write an event file for TensorBoard to this folder");
}

void check_given(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const bool number = option->get_type_name().starts_with("FLOAT");
    for (const std::string& text : option->results()) {
      if (text.empty()) throw UsageError(option->get_name() + ": expected a value, got an empty string");
      if (number && std::isnan(std::strtod(text.c_str(), nullptr))) {
        throw UsageError(fmt::format("{}: expected a number, got {}", option->get_name(), text));
      }
    }
  }
}

void check_run_flags(const RunFlags& f) {
  if (f.save_every > 0 && f.save.empty()) throw UsageError("--save-every needs --save");
  if (f.keep > 0 && f.save.empty()) throw UsageError("--keep needs --save");
  if (f.resume == "latest" && f.save.empty()) throw UsageError("--resume needs --save, or the name of a folder");
  if (!f.resume.empty() && !f.load.empty()) throw UsageError("expected --resume or --load, got both");
}

void check_run_files(const RunFlags& f) {
  if (!f.load.empty() && !std::filesystem::exists(f.load)) throw UsageError("--load: no checkpoint " + f.load);
  check_writable("--log", f.log);
  check_writable("--plot", f.plot);
  if (!f.tensorboard.empty()) {
    std::error_code error;
    std::filesystem::create_directories(f.tensorboard, error);
    if (!std::filesystem::is_directory(f.tensorboard))
      throw UsageError("--tensorboard: cannot create " + f.tensorboard);
  }
  if (f.keep == 0) return check_can_save("--save", f.save);
  if (std::filesystem::exists(std::filesystem::path(f.save) / "checkpoint.json")) {
    throw UsageError(
        fmt::format("--keep: --save {} is a checkpoint, not a folder of checkpoints; use another folder", f.save));
  }
  const auto steps = dtensor::checkpoint_steps(f.save);
  std::error_code none;
  const bool own = f.resume == "latest" || std::filesystem::equivalent(f.resume, f.save, none);  // Not of another run.
  if (!steps.empty() && !own) {
    throw UsageError(
        fmt::format("--save {} has checkpoints of another run, the newest of step {}: resume it with --resume, "
                    "or use another folder",
                    f.save, steps.front()));
  }
  check_can_save("--save", dtensor::checkpoint_of_step(f.save, 0));
}

int report_usage_error(const std::string& program, const std::string& message) {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID"}) {
    const char* rank = std::getenv(variable);
    if (rank != nullptr && std::string(rank) != "0") return 2;
  }
  std::cerr << program << ": " << message << "\n";
  return 2;
}

}  // namespace train
