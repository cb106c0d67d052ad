#include "dry_run.h"

#include <fmt/format.h>

#include <cstdio>
#include <stdexcept>

#include "output.h"
#include "program.h"
#include "run.h"

namespace train {
namespace {

// Two steps of rank 0. The loss and the norm are for the log: any finite number serves.
dtensor::DryRunReport simulate(Options options, dtensor::DryRunOptions how,
                               const std::function<void(const dtensor::Communicator& world, const Options&)>& steps) {
  options.steps = 2;
  options.device = "cpu";
  options.load = options.save = options.resume = "";
  options.save_every = options.keep = 0;
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
  return simulate(options, how, [&](const dtensor::Communicator& world, const Options& simulated) {
    train_on_mesh(world, simulated, corpus, after_step);
  });
}

}  // namespace

dtensor::DryRunReport dry_run(const Options& options, const Corpus& corpus) {
  return run_second_step(options, corpus, {});
}

dtensor::DryRunReport trace_step(const Options& options, const Corpus& corpus, bool asynchronous) {
  return run_second_step(options, corpus, {.trace = true, .asynchronous = asynchronous});
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

int report_dry_run(const Options& options, const Corpus& corpus) {
  return print_dry_run(dry_run(options, corpus), options.dry_run_json, options.memory_limit);
}

}  // namespace train
