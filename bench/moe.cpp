// Time of a training step of examples/moe with experts over all ranks: one JSON line a mode, as the peer's script
// prints.
//   bench_moe [--mode moe_local,moe_ep,moe_forced,moe_equal] [--hidden 64] [--batch 8] [--seq 16] [--steps 20]
//   [--warmup 5]
//   [--ranks N]
// moe_local is one device without DTensors, moe_ep the router's own choice; moe_forced and moe_equal the same forced
// balance, exchanged with counts and without.
#include <iostream>
#include <map>

#include "dtensor/events.h"
#include "dtensor/launch.h"
#include "train/run.h"
#include "training.h"

namespace {

struct Bench : bench::Training {
  train::Options job;
  bool kinds = false;
};

void add_flags(CLI::App& app, Bench& bench) {
  bench.modes = {"moe_local", "moe_ep", "moe_forced", "moe_equal"};
  bench::add_training_flags(app, bench, bench.job);
  app.add_flag("--kinds", bench.kinds, "print the collectives of a step by kind");
}

train::Options options_of(const Bench& bench, const std::string& mode) {
  auto o = bench.job;
  o.steps += bench.warmup;
  o.experts.emplace().balance = mode == "moe_equal" || mode == "moe_forced" ? "forced" : "none";
  o.experts->dispatcher = mode == "moe_equal" ? "equal" : "all-to-all";
  o.experts->show_load = false;
  return o;
}

void report(const Bench& bench, const std::string& mode, const char* backend, int ranks,
            const std::vector<train::StepRecord>& records, std::int64_t collectives = 0) {
  std::vector<double> ms;
  for (const auto& record : records) ms.push_back(record.seconds * 1e3);
  const auto& last = records.back();
  bench::print_training(bench, bench.job, mode, backend, ranks, std::move(ms),
                        {{"ep_bytes", last.moved.count("ep") > 0 ? last.moved.at("ep") : 0},
                         {"collectives", collectives / static_cast<std::int64_t>(records.size())},
                         {"loss_last", last.loss}});
}

void run(const Bench& bench, const dtensor::Communicator& world, const train::Corpus& corpus) {
  for (const auto& mode : bench.modes) {
    const auto options = options_of(bench, mode);
    if (mode == "moe_local") {
      if (world.size() == 1) report(bench, mode, "none", 1, train::train_on_one_device(options, corpus));
      continue;
    }
    std::int64_t collectives = 0;
    std::map<std::string, std::int64_t> kinds;
    std::vector<train::StepRecord> records;
    {
      const dtensor::EventListener counter(
          [&](const dtensor::Event& event) {
            ++collectives;
            ++kinds[event.name + " " + event.axis];
          },
          {dtensor::Event::Kind::collective});
      records = train::train_on_mesh(world, options, corpus, {});
    }
    if (world.rank() == 0) report(bench, mode, world.backend_name(), world.size(), records, collectives);
    if (world.rank() == 0 && bench.kinds)
      for (const auto& [name, count] : kinds)
        std::cerr << name << " " << static_cast<double>(count) / records.size() << "\n";
    world.barrier();
  }
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
