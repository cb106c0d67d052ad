// The flags that programs share, and what is wrong with them.
#include "run_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "dtensor/checkpoint.h"
#include "output.h"

namespace train {

void add_run_flags(CLI::App& app, RunFlags& f) {
  app.add_option("--save", f.save, "write a checkpoint to this folder at the end");
  app.add_option("--save-every", f.save_every, "and after every so many steps, in the background")
      ->check(CLI::Range(1, 100'000'000));
  app.add_option("--keep", f.keep,
                 "make --save a folder of the newest so many checkpoints, step-00000050 and so on, and a link 'latest'")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--load", f.load, "go on from this checkpoint, saved on any mesh, up to --steps in all");
  app.add_option(
         "--resume", f.resume,
         "go on from the newest whole checkpoint of --save (or of the folder given), if there is one; a damaged "
         "one is passed over for the one before")
      ->expected(0, 1)
      ->default_str("latest");
  app.add_option("--log", f.log,
                 "write one JSON line a step to this file, behind those of the steps before where a run goes on");
  app.add_option("--plot", f.plot, "write the loss curve to this SVG file");
  app.add_option("--tensorboard", f.tensorboard, "write an event file for TensorBoard to this folder");
}

void check_given(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const bool number = option->get_type_name().starts_with("FLOAT");
    for (const std::string& text : option->results()) {
      if (text.empty()) throw UsageError(option->get_name() + ": nothing is given (an empty text)");
      if (number && std::isnan(std::strtod(text.c_str(), nullptr))) {
        throw UsageError(fmt::format("{}: {} is no number", option->get_name(), text));
      }
    }
  }
}

void check_run_flags(const RunFlags& f) {
  if (f.save_every > 0 && f.save.empty()) throw UsageError("--save-every needs --save");
  if (f.keep > 0 && f.save.empty()) throw UsageError("--keep needs --save");
  if (f.resume == "latest" && f.save.empty()) throw UsageError("--resume needs --save, or the name of a folder");
  if (!f.resume.empty() && !f.load.empty()) throw UsageError("--resume and --load are two ways to go on: give one");
}

void check_run_files(const RunFlags& f) {
  if (!f.load.empty() && !std::filesystem::exists(f.load)) throw UsageError("--load: no checkpoint " + f.load);
  check_writable("--log", f.log);
  check_writable("--plot", f.plot);
  if (!f.tensorboard.empty()) {
    std::error_code error;
    std::filesystem::create_directories(f.tensorboard, error);
    if (!std::filesystem::is_directory(f.tensorboard)) throw UsageError("--tensorboard: cannot make " + f.tensorboard);
  }
  if (f.keep == 0) return check_can_save("--save", f.save);
  if (std::filesystem::exists(std::filesystem::path(f.save) / "checkpoint.json")) {
    throw UsageError(
        fmt::format("--keep: --save {} is a checkpoint itself, not a folder of several; name another folder", f.save));
  }
  const auto steps = dtensor::checkpoint_steps(f.save);
  std::error_code none;
  const bool own = f.resume == "latest" || std::filesystem::equivalent(f.resume, f.save, none);  // not another run's
  if (!steps.empty() && !own) {
    throw UsageError(
        fmt::format("--save {} has checkpoints of a run, the newest of step {}: go on from it with --resume, "
                    "or name another folder",
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
