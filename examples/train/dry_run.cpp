#include "dry_run.h"

#include <fmt/format.h>

#include <cstdio>
#include <stdexcept>

#include "output.h"
#include "program.h"
#include "run.h"

namespace train {

dtensor::DryRunReport dry_run(Options options, const Corpus& corpus) {
  const auto ranks = options.mesh ? options.mesh->size() : options.ranks.value_or(1);
  const auto shape = fit_mesh(options, static_cast<int>(ranks));
  check_heads(options);
  if (options.experts) fit_sparse(*options.experts, shape);
  options.steps = 2;
  options.device = "cpu";
  if (options.experts) options.experts->show_load = false;
  try {
    // The loss and the norm are for the log: any finite number serves.
    return dtensor::dry_run(
        {.ranks = static_cast<int>(ranks), .rank = 0, .number = 1},
        [&](const dtensor::Communicator& world) { train_on_mesh(world, options, corpus, {}); });
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

int report_dry_run(const Options& options, const Corpus& corpus) {
  const auto report = dry_run(options, corpus);
  std::optional<std::int64_t> limit;
  if (options.memory_limit > 0) limit = static_cast<std::int64_t>(options.memory_limit * 1e9);
  fmt::print("dry run of {} steps\n{}", 2, report.table(limit));
  if (!options.dry_run_json.empty()) write_file(options.dry_run_json, report.json() + "\n");
  return limit && !report.fits(*limit) ? 1 : 0;
}

}  // namespace train
