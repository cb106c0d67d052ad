// Time and memory of a training step of examples/train on a mesh: one JSON line a mode, as the peer's script prints.
//   bench_train [--mode fsdp,tp,tp_lp] [--hidden 64] [--batch 8] [--seq 16] [--steps 20] [--warmup 5] [--ranks N]
// `single` is one device without DTensors. Under mpirun the ranks are processes.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "dtensor/launch.h"
#include "timing.h"
#include "train/data.h"
#include "train/run.h"

namespace {

struct Bench {
  train::Options job;
  std::vector<std::string> modes{"single", "fsdp", "tp", "tp_lp"};
  std::int64_t warmup = 5;
  int ranks = 2;
};

Bench parse(int argc, char** argv) {
  Bench bench;
  bench.job.batch = 8, bench.job.seq = 16, bench.job.steps = 20, bench.job.warmup = 0;
  CLI::App app("Step time and memory of training on a mesh");
  app.add_option("--mode", bench.modes, "single, fsdp, tp, tp_lp")->delimiter(',');
  app.add_option("--hidden", bench.job.hidden, "width of the model");
  app.add_option("--batch", bench.job.batch, "sequences a step, over all ranks");
  app.add_option("--seq", bench.job.seq, "tokens a sequence");
  app.add_option("--steps", bench.job.steps, "measured steps");
  app.add_option("--warmup", bench.warmup, "steps before");
  app.add_option("--ranks", bench.ranks, "thread ranks of a single process");
  app.parse(argc, argv);
  return bench;
}

// MiB, the most that this process ever held. Thread ranks share it.
double peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void report(const Bench& bench, const std::string& mode, const char* backend, int ranks,
            const std::vector<train::StepRecord>& records) {
  std::vector<double> ms;
  for (auto i = static_cast<std::size_t>(bench.warmup); i < records.size(); ++i) ms.push_back(records[i].seconds * 1e3);
  const double median = bench::median(ms);
  const nlohmann::json line = {{"bench", "train"},
                               {"mode", mode},
                               {"backend", backend},
                               {"ranks", ranks},
                               {"hidden", bench.job.hidden},
                               {"ms_median", median},
                               {"ms_min", *std::min_element(ms.begin(), ms.end())},
                               {"tokens_per_s", static_cast<double>(bench.job.batch * bench.job.seq) / median * 1e3},
                               {"peak_rss_mb", peak_memory()},
                               {"loss_last", records.back().loss}};
  std::cout << line.dump() << std::endl;
}

train::Options options_of(const Bench& bench, const std::string& mode, int ranks) {
  train::Options options = bench.job;
  options.steps += bench.warmup;
  options.loss_parallel = mode == "tp_lp";
  options.mesh = mode == "fsdp" ? train::MeshShape{1, ranks, 1} : train::MeshShape{1, 1, ranks};
  return options;
}

void run(const Bench& bench, const dtensor::Communicator& world, const train::Corpus& corpus) {
  for (const auto& mode : bench.modes) {
    if (mode == "single") {
      if (world.size() == 1)
        report(bench, mode, "none", 1, train::train_on_one_device(options_of(bench, mode, 1), corpus));
      continue;
    }
    const auto records = train::train_on_mesh(world, options_of(bench, mode, world.size()), corpus, {});
    if (world.rank() == 0) report(bench, mode, world.backend_name(), world.size(), records);
    world.barrier();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Bench bench = parse(argc, argv);
  const auto corpus = train::Corpus::read({}, bench.job.seq);
  return dtensor::launch(argc, argv, [&](dtensor::Communicator world) { run(bench, world, corpus); });
}
