// A training step beside the same transformer distributed by hand (bench/by_hand), in turns: one JSON line a mode and a
// size. On thread ranks one device with as many threads as there are ranks is measured too.
//   bench_by_hand [--mode fsdp,tp] [--hidden 64,256,512] [--runs 5] [--steps 20] [--warmup 5] [--ranks N]
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
  std::string only;  // ours or by-hand, for a profiler
};

Bench parse(int argc, char** argv) {
  Bench bench;
  bench.modes = {"fsdp", "tp"};
  CLI::App app("Step time of training on a mesh beside the same written by hand");
  bench::add_training_flags(app, bench, bench.job);
  app.remove_option(app.get_option("--hidden"));
  app.add_option("--hidden", bench.hidden, "widths of the model")->delimiter(',');
  app.add_option("--runs", bench.runs, "of each in turn");
  app.add_option("--only", bench.only, "ours or by-hand alone, for a profiler")
      ->check(CLI::IsMember({"ours", "by-hand"}));
  app.parse(argc, argv);
  return bench;
}

struct Outcome {
  double ms = 0, loss = 0;  // median step, last loss
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

Outcome by_hand_on(const Bench& bench, const std::string& mode, const dtensor::Communicator& world,
                   const train::Options& options, const train::Corpus& corpus) {
  const auto training =
      mode == "fsdp" ? by_hand::fully_sharded(world, options) : by_hand::tensor_parallel(world, options);
  const auto losses = training->run(options, corpus);
  return outcome(losses.seconds, losses.loss.back(), bench.warmup);
}

// The other ranks wait meanwhile, and leave their cores to it.
Outcome on_one_device(const Bench& bench, const dtensor::Communicator& world, const train::Options& options,
                      const train::Corpus& corpus) {
  Outcome result;
  if (world.rank() == 0) {
    const int threads = at::get_num_threads();
    at::set_num_threads(world.size());
    result = of_records(train::train_on_one_device(options, corpus), bench.warmup);
    at::set_num_threads(threads);
  }
  world.barrier();
  return result;
}

train::Options options_of(const Bench& bench, const std::string& mode, std::int64_t hidden, int ranks) {
  train::Options options = bench.job;
  options.hidden = hidden;
  options.steps += bench.warmup;
  options.mesh = mode == "fsdp" ? train::MeshShape{1, ranks, 1} : train::MeshShape{1, 1, ranks};
  return options;
}

void run_one(const Bench& bench, const std::string& mode, std::int64_t hidden, const dtensor::Communicator& world,
             const train::Corpus& corpus) {
  const auto options = options_of(bench, mode, hidden, world.size());
  const auto result = bench.only == "ours" ? of_records(train::train_on_mesh(world, options, corpus, {}), bench.warmup)
                                           : by_hand_on(bench, mode, world, options, corpus);
  if (world.rank() == 0) std::cout << nlohmann::json{{"mode", mode}, {bench.only, result.ms}}.dump() << std::endl;
}

void compare(const Bench& bench, const std::string& mode, std::int64_t hidden, const dtensor::Communicator& world,
             const train::Corpus& corpus) {
  if (!bench.only.empty()) return run_one(bench, mode, hidden, world, corpus);
  const auto options = options_of(bench, mode, hidden, world.size());
  const bool threads = std::string(world.backend_name()) == "local";
  std::vector<double> ours, by_hand, single, to_hand, to_single;
  double difference = 0;
  for (int run = 0; run < bench.runs; ++run) {
    const auto a = of_records(train::train_on_mesh(world, options, corpus, {}), bench.warmup);
    const auto b = by_hand_on(bench, mode, world, options, corpus);
    ours.push_back(a.ms), by_hand.push_back(b.ms), to_hand.push_back(a.ms / b.ms);
    difference = std::max(difference, std::abs(a.loss - b.loss));
    if (!threads) continue;
    single.push_back(on_one_device(bench, world, options, corpus).ms);
    to_single.push_back(a.ms / single.back());
  }
  if (world.rank() != 0) return;
  nlohmann::json line = {{"bench", "by_hand"},
                         {"mode", mode},
                         {"backend", world.backend_name()},
                         {"ranks", world.size()},
                         {"hidden", hidden},
                         {"ms", bench::median(ours)},
                         {"ms_by_hand", bench::median(by_hand)},
                         {"ratio", bench::median(to_hand)},
                         {"loss_difference", difference}};
  if (threads) line["ms_one_device"] = bench::median(single), line["ratio_one_device"] = bench::median(to_single);
  std::cout << line.dump() << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const Bench bench = parse(argc, argv);
  const auto corpus = train::Corpus::read({}, bench.job.seq);
  return dtensor::launch(argc, argv, [&](dtensor::Communicator world) {
    for (const auto& mode : bench.modes) {
      for (const auto hidden : bench.hidden) compare(bench, mode, hidden, world, corpus);
    }
  });
}
