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
dtensor::DryRunReport run(Options options, const Corpus& corpus, dtensor::DryRunOptions how, const OnStep& on_step,
                          MemoryUse* memory) {
  options.steps = 2;
  options.device = "cpu";
  options.load = options.save = options.resume = "";
  options.save_every = options.keep = 0;
  if (options.experts) options.experts->show_load = false;
  try {
    how.number = 1;
    return dtensor::dry_run(
        how, [&](const dtensor::Communicator& world) { train_on_mesh(world, options, corpus, on_step, memory); });
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
  return run(options, corpus, how, after_step, nullptr);
}

}  // namespace

dtensor::DryRunReport dry_run(const Options& options, const Corpus& corpus) {
  return run_second_step(options, corpus, {});
}

dtensor::DryRunReport trace_step(const Options& options, const Corpus& corpus, bool asynchronous) {
  return run_second_step(options, corpus, {.trace = true, .asynchronous = asynchronous});
}

dtensor::FsdpMemory predict_memory(const Options& options, const Corpus& corpus, int ranks) {
  MemoryUse memory;
  run(options, corpus, {.ranks = ranks}, {}, &memory);
  return memory.measured;
}

int report_dry_run(const Options& options, const Corpus& corpus) {
  const auto report = dry_run(options, corpus);
  std::optional<std::int64_t> limit;
  if (options.memory_limit > 0) limit = static_cast<std::int64_t>(options.memory_limit * 1e9);
  fmt::print("dry run: the second step of {}", report.table(limit));
  if (!options.dry_run_json.empty()) write_file(options.dry_run_json, report.json() + "\n");
  return limit && !report.fits(*limit) ? 1 : 0;
}

}  // namespace train
