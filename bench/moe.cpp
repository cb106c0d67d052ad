// Time of a training step of apps/moe with experts over all ranks: one JSON line for each mode, in the format of
// the peer's script.
//   bench_moe [--mode moe_local,moe_ep,moe_forced,moe_equal] [--hidden 64] [--batch 8] [--seq 16] [--steps 20]
//   [--warmup 5] [--runs 1] [--ranks N]
// moe_local is one device without DTensors, and moe_ep routes by the router. moe_forced and moe_equal force the same
// balance; moe_forced exchanges counts, moe_equal does not.
#include <iostream>
#include <map>
#include <optional>

#include "dtensor/events.h"
#include "dtensor/launch.h"
#include "train/run.h"
#include "training.h"

namespace {

struct Bench : bench::Training {
  train::Options job;
  bool kinds = false;
  int runs = 1;
};

void add_flags(CLI::App& app, Bench& bench) {
  bench.modes = {"moe_local", "moe_ep", "moe_forced", "moe_equal"};
  bench::add_training_flags(app, bench, bench.job);
  app.add_flag("--kinds", bench.kinds, "print the collectives of a step by kind");
  app.add_option("--runs", bench.runs,
                 "alternating runs of the modes; with several, also prints ratios to the first mode")
      ->check(CLI::PositiveNumber);
}

train::Options options_of(const Bench& bench, const std::string& mode) {
  auto o = bench.job;
  o.steps += bench.warmup;
  o.experts.emplace().balance = mode == "moe_equal" || mode == "moe_forced" ? "forced" : "none";
  o.experts->dispatcher = mode == "moe_equal" ? "equal" : "all-to-all";
  o.experts->show_load = false;
  return o;
}

using Counts = std::map<std::string, std::int64_t>;  // Number of collectives by kind and axis.

// Prints a mode and returns the median step in milliseconds.
double report(const Bench& bench, const std::string& mode, const char* backend, int ranks,
              const std::vector<train::StepRecord>& records, const Counts& kinds) {
  const auto steps = static_cast<std::int64_t>(records.size());
  std::int64_t collectives = 0;
  for (const auto& [name, count] : kinds) {
    collectives += count;
    if (bench.kinds) std::cerr << name << " " << static_cast<double>(count) / static_cast<double>(steps) << "\n";
  }
  std::vector<double> ms;
  for (const auto& record : records) ms.push_back(record.seconds * 1e3);
  const auto& last = records.back();
  return bench::print_training(bench, bench.job, mode, backend, ranks, std::move(ms),
                               {{"ep_bytes", last.moved.count("ep") > 0 ? last.moved.at("ep") : 0},
                                {"collectives", collectives / steps},
                                {"loss_last", last.loss}});
}

// The median step of a mode on rank 0; nothing on other ranks, which do not run the mode of one device.
std::optional<double> run_mode(const Bench& bench, const std::string& mode, const dtensor::Communicator& world,
                               const train::Corpus& corpus) {
  const auto options = options_of(bench, mode);
  if (mode == "moe_local") {
    if (world.size() > 1) return std::nullopt;
    return report(bench, mode, "none", 1, train::train_on_one_device(options, corpus), {});
  }
  Counts kinds;
  std::vector<train::StepRecord> records;
  {
    const dtensor::EventListener counter([&](const dtensor::Event& event) { ++kinds[event.name + " " + event.axis]; },
                                         {dtensor::Event::Kind::collective});
    records = train::train_on_mesh(world, options, corpus, {});
  }
  std::optional<double> ms;
  if (world.rank() == 0) ms = report(bench, mode, world.backend_name(), world.size(), records, kinds);
  world.barrier();
  return ms;
}

// Ratios of the other modes to the first, run by run. Modes alternate, so that disturbances affect all of them.
void print_ratios(const Bench& bench, const std::map<std::string, std::vector<double>>& ms) {
  const auto& first = ms.at(bench.modes.front());
  for (const auto& [mode, values] : ms) {
    if (mode == bench.modes.front()) continue;
    std::vector<double> ratios;
    for (std::size_t run = 0; run < values.size(); ++run) ratios.push_back(values[run] / first[run]);
    std::cout << nlohmann::json{{"bench", "train"},
                                {"hidden", bench.job.hidden},
                                {"runs", values.size()},
                                {mode + " / " + bench.modes.front(), bench::median(ratios)}}
                     .dump()
              << std::endl;
  }
}

void run(const Bench& bench, const dtensor::Communicator& world, const train::Corpus& corpus) {
  std::map<std::string, std::vector<double>> ms;
  for (int run = 0; run < bench.runs; ++run) {
    for (const auto& mode : bench.modes) {
      if (const auto median = run_mode(bench, mode, world, corpus)) ms[mode].push_back(*median);
    }
  }
  if (bench.runs > 1 && ms.contains(bench.modes.front())) print_ratios(bench, ms);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench;
  CLI::App app("Step time of training a mixture of experts");
  add_flags(app, bench);
  CLI11_PARSE(app, argc, argv);
  const auto corpus = train::Corpus::read({}, bench.job.seq);
  return dtensor::launch(argc, argv, [&](dtensor::Communicator world) { run(bench, world, corpus); });
}
