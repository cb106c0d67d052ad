// Time of a training step, compared with hand-written SPMD code for the same transformer, alternating: one JSON line
// for each mode and size.
//   bench_by_hand [--mode fsdp,local_semantics,tp] [--hidden 64,256,512] [--runs 5] [--steps 20] [--warmup 5] [--ranks
//   N]
//   [--one-device]
// Under mpirun the ranks are processes.
#include "by_hand/training.h"

#include <ATen/Parallel.h>

#include "dtensor/launch.h"
#include "train/run.h"
#include "training.h"

namespace {

struct Bench : bench::Training {
  train::Options job;
  std::vector<std::int64_t> hidden = {64, 256, 512};
  int runs = 5;
  bool one_device = false;
  std::string only;  // This library or the hand-written code only, for a profiler.
};

void add_flags(CLI::App& app, Bench& bench) {
  bench.modes = {"fsdp", "local_semantics", "tp"};
  bench::add_training_flags(app, bench, bench.job);
  app.remove_option(app.get_option("--hidden"));
  app.add_option("--hidden", bench.hidden, "hidden sizes of the model")->delimiter(',');
  app.add_option("--runs", bench.runs, "alternating runs of each");
  app.add_flag("--one-device", bench.one_device, "also measure one device with as many threads as thread ranks");
  app.add_option("--only", bench.only, "run only one of both, for a profiler")
      ->check(CLI::IsMember({"ours", "by-hand"}));
}

struct Outcome {
  double ms = 0, loss = 0;  // Median step, last loss.
};

Outcome outcome(std::vector<double> seconds, double loss, std::int64_t warmup) {
  seconds.erase(seconds.begin(), seconds.begin() + warmup);
  return {1e3 * bench::median(std::move(seconds)), loss};
}

Outcome of_records(const std::vector<train::StepRecord>& records, std::int64_t warmup) {
  std::vector<double> seconds;
  for (const auto& record : records) seconds.push_back(record.seconds);
  return outcome(std::move(seconds), records.back().loss, warmup);
}

Outcome outcome_of(const manual_spmd::Losses& losses, std::int64_t warmup) {
  return outcome(losses.seconds, losses.loss.back(), warmup);
}

Outcome run_dtensor(const Bench& bench, const std::string& mode, const dtensor::Communicator& world,
                    const train::Options& options, const train::Corpus& corpus) {
  if (mode != "local_semantics") return of_records(train::train_on_mesh(world, options, corpus, {}), bench.warmup);
  return outcome_of(manual_spmd::local_semantics(world, options)->run(options, corpus), bench.warmup);
}

Outcome run_manual_spmd(const Bench& bench, const std::string& mode, const dtensor::Communicator& world,
                        const train::Options& options, const train::Corpus& corpus) {
  const auto training =
      mode == "tp" ? manual_spmd::tensor_parallel(world, options) : manual_spmd::fully_sharded(world, options);
  return outcome_of(training->run(options, corpus), bench.warmup);
}

train::Options options_of(const Bench& bench, const std::string& mode, std::int64_t hidden, int ranks) {
  train::Options options = bench.job;
  options.hidden = hidden;
  options.steps += bench.warmup;
  options.mesh = mode == "tp" ? train::MeshShape{1, 1, ranks} : train::MeshShape{1, ranks, 1};
  return options;
}

void run_one(const Bench& bench, const std::string& mode, std::int64_t hidden, const dtensor::Communicator& world,
             const train::Corpus& corpus) {
  const auto options = options_of(bench, mode, hidden, world.size());
  const auto result = bench.only == "ours" ? run_dtensor(bench, mode, world, options, corpus)
                                           : run_manual_spmd(bench, mode, world, options, corpus);
  if (world.rank() == 0) std::cout << nlohmann::json{{"mode", mode}, {bench.only, result.ms}}.dump() << std::endl;
}

// Measurements of one mode and size, one value for each run.
struct Comparison {
  std::vector<double> ours, manual, one_device, ratio_to_manual, ratio_to_one_device;
  double loss_difference = 0;
  std::string backend;
};

// Both implementations; the result is on rank 0.
void run_both(const Bench& bench, const std::string& mode, const train::Options& options,
              const dtensor::Communicator& world, const train::Corpus& corpus, Comparison& comparison) {
  const auto a = run_dtensor(bench, mode, world, options, corpus);
  const auto b = run_manual_spmd(bench, mode, world, options, corpus);
  if (world.rank() != 0) return;
  comparison.ours.push_back(a.ms), comparison.manual.push_back(b.ms), comparison.ratio_to_manual.push_back(a.ms / b.ms);
  comparison.loss_difference = std::max(comparison.loss_difference, std::abs(a.loss - b.loss));
  comparison.backend = world.backend_name();
}

void print(const Bench& bench, const std::string& mode, std::int64_t hidden, const Comparison& comparison) {
  nlohmann::json line = {{"bench", "by_hand"},
                         {"mode", mode},
                         {"backend", comparison.backend},
                         {"ranks", bench.ranks},
                         {"hidden", hidden},
                         {"ms", bench::median(comparison.ours)},
                         {"ms_by_hand", bench::median(comparison.manual)},
                         {"ratio", bench::median(comparison.ratio_to_manual)},
                         {"loss_difference", comparison.loss_difference}};
  if (!comparison.one_device.empty()) {
    line["ms_one_device"] = bench::median(comparison.one_device);
    line["ratio_one_device"] = bench::median(comparison.ratio_to_one_device);
  }
  std::cout << line.dump() << std::endl;
}

// Thread ranks, which have ended before one device uses the cores.
void compare_in_threads(const Bench& bench, const std::string& mode, std::int64_t hidden, const train::Corpus& corpus) {
  const auto options = options_of(bench, mode, hidden, bench.ranks);
  Comparison comparison;
  at::set_num_threads(bench.ranks);
  for (int run = 0; run < bench.runs; ++run) {
    dtensor::run_local(bench.ranks, [&](const dtensor::Communicator& world) {
      run_both(bench, mode, options, world, corpus, comparison);
    });
    comparison.one_device.push_back(of_records(train::train_on_one_device(options, corpus), bench.warmup).ms);
    comparison.ratio_to_one_device.push_back(comparison.ours.back() / comparison.one_device.back());
  }
  print(bench, mode, hidden, comparison);
}

void compare(Bench bench, const std::string& mode, std::int64_t hidden, const dtensor::Communicator& world,
             const train::Corpus& corpus) {
  if (!bench.only.empty()) return run_one(bench, mode, hidden, world, corpus);
  Comparison comparison;
  bench.ranks = world.size();
  const auto options = options_of(bench, mode, hidden, world.size());
  for (int run = 0; run < bench.runs; ++run) run_both(bench, mode, options, world, corpus, comparison);
  if (world.rank() == 0) print(bench, mode, hidden, comparison);
}

template <class Run>
void for_each_case(const Bench& bench, const Run& run) {
  for (const auto& mode : bench.modes) {
    for (const auto hidden : bench.hidden) run(mode, hidden);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench;
  CLI::App app("Step time of training on a mesh, compared with hand-written SPMD code");
  add_flags(app, bench);
  CLI11_PARSE(app, argc, argv);
  const auto corpus = train::Corpus::read({}, bench.job.seq);
  if (bench.one_device) {
    for_each_case(bench, [&](const auto& mode, auto hidden) { compare_in_threads(bench, mode, hidden, corpus); });
    return 0;
  }
  return dtensor::launch(argc, argv, [&](dtensor::Communicator world) {
    for_each_case(bench, [&](const auto& mode, auto hidden) { compare(bench, mode, hidden, world, corpus); });
  });
}
