#include "train/layouts/dry_run.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <stdexcept>

#include "command_line.h"
#include "train/layouts/search.h"
#include "train/output/output.h"
#include "train/program.h"
#include "train/run.h"

namespace train {
namespace {

// Two steps of rank 0. The loss and the norm are for the log: any finite number serves.
dtensor::DryRunReport simulate(Options options, dtensor::DryRunOptions how,
                               const std::function<void(const dtensor::Communicator& world, const Options&)>& steps) {
  options.steps = 2;
  options.device = "cpu";
  options.load = options.save = options.resume = options.hashes = "";
  options.save_every = options.keep = options.check_ranks = options.replay = 0;
  if (options.experts) options.experts->show_load = false;
  try {
    how.number = 1;
    return dtensor::dry_run(how, [&](const dtensor::Communicator& world) { steps(world, options); });
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

dtensor::DryRunReport run_second_step(const Options& options, const Corpus& corpus, dtensor::DryRunOptions how) {
  const auto ranks = static_cast<int>(options.mesh ? options.mesh->size() : options.ranks.value_or(1));
  const auto shape = fit_mesh(options, ranks);
  check_heads(options);
  if (options.experts) fit_sparse(*options.experts, shape);
  const auto after_step = [](const StepRecord& record) {
    if (record.step == 0) dtensor::StepRecorder::begin_step();
  };
  how.ranks = ranks;
  if (options.experts) how.expert_load = options.experts->load;
  return simulate(options, how, [&](const dtensor::Communicator& world, const Options& simulated) {
    train_on_mesh(world, simulated, corpus, after_step);
  });
}

}  // namespace

void add_dry_run_flags(CLI::App& app, Options& o) {
  app.add_flag("--dry-run", o.dry_run,
               "compute the memory and communication of a rank without GPUs, peers or arithmetic, and end");
  app.add_option("--dry-run-json", o.dry_run_json, "with --dry-run: write the report to this JSON file");
  app.add_option("--dry-run-trace", o.dry_run_trace,
                 "with --hardware: write a Chrome trace of the estimated step to this JSON file");
  app.add_option("--dry-run-plot", o.dry_run_plot,
                 "with --hardware: write the memory by kind over the estimated step to this SVG file");
  app.add_option("--hardware", o.hardware, "with --dry-run: estimate the time of the step on this hardware table");
  app.add_option("--plan-search", o.plan_search,
                 "estimate the time of the layouts of --ranks ranks on this hardware table, and end");
  app.add_option("--plan-out", o.plan_out, "with --plan-search: write the fastest layout to this JSON file");
  app.add_option("--plan", o.plan, "run in the layout of this file")->excludes("--mesh");
  app.add_option("--memory-limit", o.memory_limit,
                 "with --dry-run or --plan-search: memory of a rank in GB; status 1 if it is too small")
      ->check(command_line::positive());
}

void check_dry_run(const Options& o) {
  if (!o.dry_run_json.empty() && !o.dry_run) throw UsageError("--dry-run-json needs --dry-run");
  if (!o.hardware.empty() && !o.dry_run) throw UsageError("--hardware needs --dry-run");
  if (o.hardware.empty() && !(o.dry_run_trace + o.dry_run_plot).empty()) {
    throw UsageError("--dry-run-trace and --dry-run-plot need --hardware, a table of `plan calibrate`");
  }
  if (!o.plan_out.empty() && o.plan_search.empty()) throw UsageError("--plan-out needs --plan-search");
  if (o.memory_limit > 0 && !o.dry_run && o.plan_search.empty()) {
    throw UsageError("--memory-limit needs --dry-run or --plan-search");
  }
}

dtensor::DryRunReport dry_run(const Options& options, const Corpus& corpus) {
  return run_second_step(options, corpus, {});
}

dtensor::DryRunReport trace_step(const Options& options, const Corpus& corpus, bool asynchronous) {
  const bool memory = !(options.dry_run_trace + options.dry_run_plot).empty();
  return run_second_step(options, corpus, {.trace = true, .trace_memory = memory, .asynchronous = asynchronous});
}

std::vector<RankMemory> predict_memory(const Options& options, const Corpus& corpus, int ranks) {
  std::vector<RankMemory> memory;
  simulate(options, {.ranks = ranks}, [&](const dtensor::Communicator& world, const Options& simulated) {
    MemoryUse mine;
    train_on_mesh(world, simulated, corpus, {}, &mine);
    if (world.rank() == 0) memory = mine.ranks();
  });
  return memory;
}

int print_dry_run(const dtensor::DryRunReport& report, const std::string& json, double limit) {
  std::optional<std::int64_t> bytes;
  if (limit > 0) bytes = static_cast<std::int64_t>(limit * 1e9);
  fmt::print("dry run: the second step of {}", report.table(bytes));
  if (!json.empty()) write_file(json, report.json() + "\n");
  return bytes && !report.fits(*bytes) ? 1 : 0;
}

void write_step(const dtensor::DryRunReport& report, const dtensor::HardwareModel& hardware, const std::string& trace,
                const std::string& plot) {
  if (!trace.empty()) write_file(trace, step_chrome_trace(report, hardware));
  if (!plot.empty()) write_file(plot, step_memory_svg(report, hardware));
}

int report_dry_run(const Options& options, const Corpus& corpus) {
  if (options.hardware.empty()) {
    return print_dry_run(dry_run(options, corpus), options.dry_run_json, options.memory_limit);
  }
  const auto hardware = dtensor::HardwareModel::read(options.hardware);
  const auto report = trace_step(options, corpus, hardware.asynchronous);
  write_step(report, hardware, options.dry_run_trace, options.dry_run_plot);
  const int status = print_dry_run(report, options.dry_run_json, options.memory_limit);
  const auto cost = cost_of(report, options, hardware);
  fmt::print("  estimated step {:.4g} s: {}\n", cost.seconds, cost.explanation);
  return status;
}

}  // namespace train
