// Time and memory of a training step of apps/train on a mesh: one JSON line for each mode, as the peer's script.
//   bench_train [--mode fsdp,tp,tp_lp] [--hidden 64] [--batch 8] [--seq 16] [--steps 20] [--warmup 5] [--ranks N]
// `single` is one device without DTensors. `fsdp_checked` and `tp_checked` alternate steps with and without
// Checked(Checks::calls) and print its cost. Under mpirun the ranks are processes.
#include <sys/resource.h>

#include "dtensor/inspect.h"
#include "dtensor/launch.h"
#include "train/data/data.h"
#include "train/run.h"
#include "training.h"

namespace {

struct Bench : bench::Training {
  train::Options job;
};

// Peak memory of this process in MiB. Thread ranks share it.
double peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void report(const Bench& bench, const std::string& mode, const char* backend, int ranks,
            const std::vector<train::StepRecord>& records) {
  std::vector<double> ms;
  for (const auto& record : records) ms.push_back(record.seconds * 1e3);
  bench::print_training(bench, bench.job, mode, backend, ranks, std::move(ms),
                        {{"peak_rss_mb", peak_memory()}, {"loss_last", records.back().loss}});
}

train::Options options_of(const Bench& bench, const std::string& mode, int ranks) {
  train::Options options = bench.job;
  options.steps += bench.warmup;
  options.loss_parallel = mode == "tp_lp";
  options.mesh = mode.starts_with("fsdp") ? train::MeshShape{1, ranks, 1} : train::MeshShape{1, 1, ranks};
  return options;
}

double median_ms(const std::vector<train::StepRecord>& records, std::int64_t warmup) {
  std::vector<double> ms;
  for (const auto& record : records) ms.push_back(record.seconds * 1e3);
  ms.erase(ms.begin(), ms.begin() + warmup);
  return bench::median(ms);
}

// Runs alternate, so that disturbances affect both; reports the median of the ratios of pairs.
void run_checked(const Bench& bench, const std::string& mode, const dtensor::Communicator& world,
                 const train::Corpus& corpus) {
  constexpr int kPairs = 7;
  const auto options = options_of(bench, mode, world.size());
  std::vector<double> without, with, ratios;
  for (int i = 0; i < kPairs; ++i) {
    without.push_back(median_ms(train::train_on_mesh(world, options, corpus, {}), bench.warmup));
    const dtensor::Checked checked(dtensor::Checks::calls);
    with.push_back(median_ms(train::train_on_mesh(world, options, corpus, {}), bench.warmup));
    ratios.push_back(with.back() / without.back());
  }
  if (world.rank() != 0) return;
  std::cout << nlohmann::json{{"bench", "train"},
                              {"mode", mode},
                              {"backend", world.backend_name()},
                              {"ranks", world.size()},
                              {"hidden", bench.job.hidden},
                              {"ms_unchecked", bench::median(without)},
                              {"ms_checked", bench::median(with)},
                              {"ratio", bench::median(ratios)}}
                   .dump()
            << std::endl;
}

void run(const Bench& bench, const dtensor::Communicator& world, const train::Corpus& corpus) {
  for (const auto& mode : bench.modes) {
    if (mode == "single") {
      if (world.size() == 1)
        report(bench, mode, "none", 1, train::train_on_one_device(options_of(bench, mode, 1), corpus));
      continue;
    }
    if (mode.ends_with("_checked")) {
      run_checked(bench, mode, world, corpus);
      continue;
    }
    const auto records = train::train_on_mesh(world, options_of(bench, mode, world.size()), corpus, {});
    if (world.rank() == 0) report(bench, mode, world.backend_name(), world.size(), records);
    world.barrier();
  }
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench;
  bench.modes = {"single", "fsdp", "tp", "tp_lp"};
  CLI::App app("Step time and memory of training on a mesh");
  bench::add_training_flags(app, bench, bench.job);
  CLI11_PARSE(app, argc, argv);
  const auto corpus = train::Corpus::read({}, bench.job.seq);
  return dtensor::launch(argc, argv, [&](dtensor::Communicator world) { run(bench, world, corpus); });
}
