#include "program.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>

#include "command_line.h"
#include "dtensor/launch.h"
#include "llm/hf/hf_config.h"
#include "plan/cost/pipeline_cost.h"
#include "plan/cost/stage_step.h"
#include "plan/decoder_cost.h"
#include "plan/measure/calibrate.h"
#include "program_data.h"
#include "train/args.h"
#include "train/layouts/dry_run.h"
#include "train/layouts/plan_file.h"
#include "train/output/output.h"

namespace plan {
namespace {

using train::UsageError;

struct Options {
  std::string preset, model, hardware = "h100", out, mesh, trace, plot;
  std::int64_t batch = 0, sequence = 8192, most_runs = 1000;
  std::vector<std::int64_t> ep = {1, 2, 4, 8, 16, 32, 64};
  std::optional<double> memory_limit, memory_reserve;  // GB; none: the hardware's
  bool exact = false, exhaustive = false;
  std::string runs;
  dtensor::LayoutSpace space{.max_pp = 16, .microbatches = {1, 2, 4, 8, 16, 32, 64}};
  std::string recompute = "any", precision = "bf16", reshard = "any", accumulate = "any", offload = "false";
  std::string float8 = "false", parameters = "float32", optimizer = "adamw";
  int calibrated_ranks = 2;
};

std::string data_folder(const char* kind) { return program_data(std::string("plan/") + kind); }

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

void add_workload_flags(CLI::App& app, Options& o) {
  auto* preset = app.add_option("--preset", o.preset,
                                "a model: " + fmt::format("{}", fmt::join(names_in(data_folder("presets")), ", ")))
                     ->check(CLI::IsMember(names_in(data_folder("presets"))));
  app.add_option("--model", o.model, "a folder with the config.json of transformers")->excludes(preset);
  app.add_option(
         "--hardware", o.hardware,
         fmt::format("{}, or a table that `plan calibrate` wrote", fmt::join(names_in(data_folder("hardware")), ", ")))
      ->capture_default_str();
  app.add_option("--ranks", o.space.ranks, "number of ranks")->check(CLI::Range(1, 1 << 20))->required();
  app.add_option("--batch", o.batch, "sequences in a step over all ranks")->check(CLI::Range(1, 1 << 24))->required();
  app.add_option("--seq", o.sequence, "tokens a sequence")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  app.add_option("--memory-limit", o.memory_limit, "memory of a rank in GB; default: the hardware's")
      ->check(command_line::positive());
  app.add_option("--memory-reserve", o.memory_reserve,
                 "GB of that memory that a step does not get (context, NCCL, what an allocator keeps); default: the "
                 "hardware's")
      ->check(command_line::non_negative());
}

void add_layout_flags(CLI::App& app, Options& o) {
  app.add_option("--max-pp", o.space.max_pp, "most pipeline stages")
      ->check(CLI::Range(1, 1 << 10))
      ->capture_default_str();
  app.add_option("--max-tp", o.space.max_tp, "most ranks of tensor parallelism")
      ->check(CLI::Range(1, 1 << 10))
      ->capture_default_str();
  app.add_option("--max-cp", o.space.max_cp, "most ranks that split a sequence")
      ->check(CLI::Range(1, 1 << 10))
      ->capture_default_str();
  app.add_option("--ep", o.ep, "numbers of ranks that split the experts to try")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 12))
      ->capture_default_str();
  app.add_option("--microbatches", o.space.microbatches, "numbers of microbatches to try")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--schedule", o.space.schedules, "pipeline schedules to try")
      ->delimiter(',')
      ->check(CLI::IsMember(dtensor::pipeline::schedule_names()));
  app.add_option("--chunks", o.space.chunks, "numbers of stages of a rank to try, of the schedules interleaved and bfs")
      ->delimiter(',')
      ->check(CLI::Range(2, 1 << 10));
  app.add_option("--reshard-after-forward", o.reshard,
                 "whether gathered parameters are freed after forward (true, ZeRO-3), or stay for the step (false)")
      ->check(CLI::IsMember({"true", "false", "any"}));
  app.add_option("--accumulate", o.accumulate,
                 "gradients of microbatches are reduced into shards, or once a step (unsharded; with "
                 "--reshard-after-forward false: ZeRO-1). A pipeline reduces once")
      ->check(CLI::IsMember({"sharded", "unsharded", "any"}));
  app.add_option(
         "--offload", o.offload,
         "whether parameters, gradients and optimizer states are in host memory, where AdamW updates them: true, "
         "false or any; not with stages, experts or Muon")
      ->check(CLI::IsMember({"true", "false", "any"}))
      ->capture_default_str();
  app.add_option("--recompute", o.recompute, "none, selective (keeps products and attention), full or any")
      ->check(CLI::IsMember({"none", "selective", "full", "any"}));
  app.add_option("--mesh", o.mesh, "only this mesh, e.g. pp=8,shard=8,tp=8");
  app.add_option("--most-runs", o.most_runs, "layouts that are dry-run at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_flag("--exhaustive", o.exhaustive,
               "run all layouts that may fit, whatever the bounds of their times; takes minutes to hours");
  app.add_flag("--exact", o.exact,
               "run all blocks and microbatches of a stage instead of extrapolating from 4 and 5 blocks");
}

// Choices that change the numbers, so a search takes them only if it may.
void add_arithmetic_flags(CLI::App& app, Options& o) {
  app.add_option("--precision", o.precision, "dtype of the computation: bf16, float32 or any")
      ->check(CLI::IsMember({"bf16", "float32", "any"}))
      ->capture_default_str();
  app.add_option("--float8", o.float8, "whether the products of blocks are in float8: true, false or any")
      ->check(CLI::IsMember({"true", "false", "any"}))
      ->capture_default_str();
  app.add_option("--parameters", o.parameters,
                 "dtype of parameters, gradients and optimizer states: float32, bf16 (with --precision bf16) or any")
      ->check(CLI::IsMember({"float32", "bf16", "any"}))
      ->capture_default_str();
  app.add_option(
         "--optimizer", o.optimizer,
         "adamw, muon (for the matrices of blocks, AdamW for all else; dry runs of all blocks take longer) or any")
      ->check(CLI::IsMember({"adamw", "muon", "any"}))
      ->capture_default_str();
}

void add_file_flags(CLI::App& app, Options& o) {
  app.add_option("--out", o.out, "write the chosen layout to this JSON file");
  app.add_option("--runs", o.runs, "write the bounds and costs of all layouts that were dry-run to this CSV file");
  app.add_option("--trace", o.trace, "write a Chrome trace of the first stage's step in this layout to this JSON file");
  app.add_option("--plot", o.plot, "write the memory by kind over that step to this SVG file");
}

void add_search(CLI::App& app, Options& o) {
  command_line::add_groups(app, o,
                           {{"Model and machine", add_workload_flags},
                            {"Layouts", add_layout_flags},
                            {"Arithmetic", add_arithmetic_flags},
                            {"Files", add_file_flags}});
}

dtensor::HardwareModel read_hardware(const std::string& name) {
  const auto known = data_folder("hardware") + "/" + name + ".json";
  return dtensor::HardwareModel::read(std::filesystem::exists(known) ? known : name);
}

// A model without experts has no ep.
std::vector<dtensor::ParallelLayout> candidates(Options o, bool experts) {
  using dtensor::Recomputation;
  o.space.recompute = {};
  for (const auto kind : {Recomputation::none, Recomputation::selective, Recomputation::full}) {
    if (o.recompute == "any" || o.recompute == to_string(kind)) o.space.recompute.push_back(kind);
  }
  const auto choices = [](const std::string& choice, const char* yes) {
    return choice == "any" ? std::vector<bool>{true, false} : std::vector<bool>{choice == yes};
  };
  o.space.reshard = choices(o.reshard, "true"), o.space.accumulate_sharded = choices(o.accumulate, "sharded");
  o.space.bf16 = choices(o.precision, "bf16"), o.space.offload = choices(o.offload, "true");
  o.space.float8 = choices(o.float8, "true"), o.space.bf16_parameters = choices(o.parameters, "bf16");
  if (o.optimizer == "any") o.space.optimizers = {"adamw", "muon"};
  if (o.optimizer == "muon") o.space.optimizers = {"muon"};
  if (o.parameters == "bf16" && o.precision == "float32") {
    throw UsageError("--parameters bf16 needs --precision bf16");
  }
  std::optional<train::MeshShape> mesh;
  if (!o.mesh.empty()) {
    mesh = train::parse_mesh(o.mesh);
    if (mesh->size() != o.space.ranks) {
      throw UsageError(
          fmt::format("--mesh {} has {} ranks, but --ranks is {}", mesh->str(), mesh->size(), o.space.ranks));
    }
    o.space.max_pp = mesh->pp, o.space.max_cp = mesh->cp, o.space.max_tp = mesh->tp;
  }
  o.space.max_ep = experts ? *std::max_element(o.ep.begin(), o.ep.end()) : 1;
  auto all = enumerate_layouts(o.space);
  std::erase_if(all, [&](const auto& l) {
    return mesh && std::tuple(l.pp, l.replicate, l.shard, l.cp, l.tp) !=
                       std::tuple(mesh->pp, mesh->replicate, mesh->shard, mesh->cp, mesh->tp);
  });
  std::erase_if(all, [&](const auto& l) { return experts && std::find(o.ep.begin(), o.ep.end(), l.ep) == o.ep.end(); });
  return all;
}

// A line on stderr every two seconds.
std::function<void(const dtensor::SearchProgress&)> progress_lines() {
  using Clock = std::chrono::steady_clock;
  return [last = Clock::now()](const dtensor::SearchProgress& p) mutable {
    if (Clock::now() - last < std::chrono::seconds(2)) return;
    last = Clock::now();
    const auto fastest = p.fastest > 0 ? fmt::format(", the fastest so far takes {:.4g} s", p.fastest) : "";
    fmt::print(stderr, "{} dry runs, {} of {} layouts decided{}\n", p.runs, p.decided, p.layouts, fastest);
  };
}

// Each dry run is a line of the file. An exhaustive search knows no bounds of times.
dtensor::PlannedProgram observed(dtensor::PlannedProgram program, const Options& o) {
  auto lines = std::make_shared<std::ofstream>();
  if (!o.runs.empty()) {
    lines->open(o.runs);
    if (!*lines) throw UsageError(fmt::format("--runs: cannot write {}", o.runs));
    fmt::print(*lines, "layout,bound seconds,bound bytes,seconds,bytes\n");
  }
  const auto bound = program.bound;
  if (o.exhaustive) {
    program.bound = [bound](const auto& l) {
      auto cost = bound(l);
      cost.seconds = 0;
      return cost;
    };
  }
  program.cost = [lines, bound, cost = program.cost](const auto& l) {
    const auto least = bound(l), real = cost(l);
    fmt::print(*lines, "\"{}\",{:.6g},{},{:.6g},{}\n", l.str(), least.seconds, least.peak_bytes, real.seconds,
               real.peak_bytes);
    lines->flush();
    return real;
  };
  return program;
}

// Bytes of a rank's memory that a step gets; 0: unknown.
std::int64_t memory_of(const Options& o, const dtensor::HardwareModel& hardware) {
  const double all = o.memory_limit ? *o.memory_limit * 1e9 : hardware.memory_bytes;
  const double reserve = o.memory_reserve ? *o.memory_reserve * 1e9 : hardware.memory_reserve;
  if (all > 0 && reserve >= all) {
    throw UsageError(fmt::format("--memory-reserve: expected less than the memory of a rank, {:.3g} GB, got {:.3g}",
                                 1e-9 * all, 1e-9 * reserve));
  }
  return all > 0 ? static_cast<std::int64_t>(all - reserve) : 0;
}

// Rates of 'product' serve dtypes that have none, but products in float8 are faster than others on GPUs, slower on
// CPUs.
void check_float8(const Options& o, const dtensor::HardwareModel& hardware) {
  const auto name = dtensor::HardwareModel::rate_name("product", at::kFloat8_e4m3fn);
  if (o.float8 == "false" || hardware.rates.contains(name)) return;
  throw UsageError(
      fmt::format("--float8 {}: the hardware table '{}' has no rates of '{}'", o.float8, hardware.name, name));
}

void check_offload(const Options& o, const dtensor::HardwareModel& hardware) {
  for (const char* kind : {"host", "transfer"}) {
    if (o.offload == "false" || hardware.rates.contains(kind)) continue;
    throw UsageError(fmt::format(
        "--offload {}: expected rates of 'host' and 'transfer' in the hardware table '{}', got none of '{}'", o.offload,
        hardware.name, kind));
  }
}

int search(const Options& o) {
  at::set_num_threads(1);  // dry runs compute nothing
  if (o.preset.empty() == o.model.empty()) throw UsageError("expected --preset or --model");
  const auto hardware = read_hardware(o.hardware);
  check_float8(o, hardware);
  check_offload(o, hardware);
  const auto family = llm::read_family(o.preset.empty() ? o.model : data_folder("presets") + "/" + o.preset);
  const Workload work{family.config, o.batch, o.sequence};
  const dtensor::SearchLimits limits{
      .memory_bytes = memory_of(o, hardware),
      .most_runs = o.exhaustive ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(o.most_runs),
      .tolerance = 0.02,
      .progress = progress_lines()};
  const auto all = candidates(o, work.model.experts.has_value());
  const auto plan = search_layouts(all, observed(planned_decoder(work, hardware, o.exact), o), limits);
  const auto size = size_of(work);
  fmt::print("{:.1f} billion parameters, {} ranks, {} sequences of {} tokens, {}: {} layouts\n{}",
             1e-9 * size.parameters, o.space.ranks, o.batch, o.sequence, hardware.name, all.size(), plan.table(limits));
  if (plan.fitting.empty()) return 1;
  const auto& best = plan.fitting.front();
  fmt::print("{:.0f} tokens/s of each rank\n",
             static_cast<double>(o.batch * o.sequence) / best.cost.seconds / static_cast<double>(o.space.ranks));
  const auto& model = o.preset.empty() ? o.model : o.preset;
  if (!o.out.empty()) train::write_plan(o.out, {best.layout, o.batch, o.sequence}, best.cost, model);
  if (!o.trace.empty() || !o.plot.empty()) {
    const Stages stages(best.layout);
    const auto blocks = (work.model.layers + best.layout.pp - 1) / best.layout.pp;
    const StageRun first{.part = stages.part(0, blocks),
                         .in_flight = static_cast<int>(std::ceil(stages.in_flight(0))),
                         .microbatches = static_cast<int>(best.layout.microbatches),
                         .every_backward = true};
    const auto report =
        run_stage(work, best.layout, first, {.trace_memory = true, .asynchronous = hardware.asynchronous});
    train::write_step(report, hardware, o.trace, o.plot);
  }
  return 0;
}

int run(int argc, char** argv) {
  Options o;
  CLI::App app("Estimates the time and memory of training steps, and finds the fastest layout that fits.", "plan");
  app.require_subcommand(1);
  auto* searching = app.add_subcommand("search", "rank the layouts of a model");
  add_search(*searching, o);
  auto* calibrating = app.add_subcommand("calibrate", "measure this machine and write its table");
  calibrating->add_option("--out", o.out, "the table")->required();
  calibrating->add_option("--ranks", o.calibrated_ranks, "thread ranks")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    throw UsageError(command_line::error_text(app, error));
  }
  if (*searching) return search(o);
  train::write_file(o.out, calibrate(o.calibrated_ranks).json() + "\n");
  return 0;
}

}  // namespace

int run_program(int argc, char** argv) {
  dtensor::report_interrupt("plan");
  try {
    return dtensor::finish_output(run(argc, argv));
  } catch (const UsageError& error) {
    return train::report_usage_error("plan", error.what());
  } catch (const c10::Error& error) {
    return train::report_usage_error("plan", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::cerr << "plan: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace plan
