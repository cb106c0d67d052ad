// Trains a mixture-of-experts language model on any mesh of ranks. Exit status as that of examples/train.
#include <fmt/format.h>

#include <iostream>

#include "dtensor/launch.h"
#include "report.h"
#include "train/log.h"
#include "train/progress.h"
#include "train/trace.h"

namespace {

using namespace moe_example;

// What rank 0 has to tell after its peers are gone.
struct Outcome {
  std::string where, usage_error;
  std::vector<StepRecord> records;
  bool reports = false;
};

// Every rank comes to the same answer, so none waits for one that left.
std::string find_usage_error(const Options& options, int ranks) {
  try {
    fit_sparse(options, train::fit_mesh(options.job, ranks));
  } catch (const train::UsageError& error) {
    return error.what();
  }
  return "";
}

std::vector<StepRecord> train_and_show(const dtensor::Communicator& world, const Options& o,
                                       const train::Corpus& corpus) {
  const bool shows = world.rank() == 0;
  train::StepLog log(shows ? o.job.log : "");
  train::Progress progress(o.job.steps);
  return train_on_mesh(world, o, corpus, [&](const StepRecord& record) {
    if (!shows) return;
    log.add(record.step);
    progress.show(record.step);
  });
}

std::vector<StepRecord> train_and_trace(const dtensor::Communicator& world, const Options& o,
                                        const train::Corpus& corpus) {
  if (o.job.trace.empty()) return train_and_show(world, o, corpus);
  train::Trace trace(world);
  auto records = train_and_show(world, o, corpus);
  trace.write(o.job.trace);
  return records;
}

void run_rank(const dtensor::Communicator& world, const Options& o, const train::Corpus& corpus, Outcome& outcome) {
  const std::string backend = world.backend_name();
  const auto usage_error = find_usage_error(o, world.size());
  std::vector<StepRecord> records;
  if (usage_error.empty()) records = train_and_trace(world, o, corpus);
  if (world.rank() != 0 && backend == "local") return;  // thread ranks share `outcome`
  outcome.usage_error = usage_error;
  outcome.records = std::move(records);
  outcome.reports = world.rank() == 0;
  if (!usage_error.empty()) return;
  const auto dense = train::fit_mesh(o.job, world.size());
  const auto sparse = fit_sparse(o, dense);
  outcome.where = fmt::format("{}; edp={}, ep={}, etp={} ({} {} ranks)", dense.str(), sparse.edp, sparse.ep, sparse.etp,
                              world.size(), backend == "local" ? "thread" : backend);
}

int run(int argc, char** argv) {
  std::optional<int> exit_status;
  const Options options = parse_args(argc, argv, exit_status);
  if (exit_status) return *exit_status;
  for (const auto& path : {options.job.log, options.job.plot, options.job.trace, options.load_plot}) {
    train::check_writable("--log, --plot, --trace, --load-plot", path);
  }
  train::check_can_save("--save", options.job.save);
  const auto corpus = train::Corpus::read(options.job.data, options.job.seq);
  Outcome outcome;
  const int status =
      dtensor::launch(argc, argv, [&](dtensor::Communicator world) { run_rank(world, options, corpus, outcome); });
  if (status != 0) return status;
  if (!outcome.usage_error.empty()) return train::report_usage_error(outcome.usage_error);
  return outcome.reports ? report(options, corpus, outcome.where, outcome.records) : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const train::UsageError& error) {
    return train::report_usage_error(error.what());
  } catch (const std::exception& error) {
    std::cerr << "moe: " << error.what() << "\n";
    return 1;
  }
}
