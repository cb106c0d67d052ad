// Time of a training step of examples/moe with experts over all ranks: one JSON line a mode, as the peer's script
// prints.
//   bench_moe [--mode moe_local,moe_ep,moe_equal] [--hidden 64] [--batch 8] [--seq 16] [--steps 20] [--warmup 5]
//   [--ranks N]
// moe_local is one device without DTensors, moe_equal the forced balance whose exchange needs no counts.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "dtensor/events.h"
#include "dtensor/launch.h"
#include "moe/run.h"
#include "timing.h"

namespace {

struct Bench {
  moe_example::Options options;
  std::vector<std::string> modes{"moe_local", "moe_ep", "moe_equal"};
  std::int64_t warmup = 5;
  int ranks = 2;
  bool kinds = false;
};

Bench parse(int argc, char** argv) {
  Bench bench;
  auto& job = bench.options.job;
  job.batch = 8, job.seq = 16, job.steps = 20, job.warmup = 0;
  CLI::App app("Step time of training a mixture of experts");
  app.add_option("--mode", bench.modes, "moe_local, moe_ep, moe_equal")->delimiter(',');
  app.add_option("--hidden", job.hidden, "width of the model and of an expert");
  app.add_option("--batch", job.batch, "sequences a step, over all ranks");
  app.add_option("--seq", job.seq, "tokens a sequence");
  app.add_option("--steps", job.steps, "measured steps");
  app.add_option("--warmup", bench.warmup, "steps before");
  app.add_option("--ranks", bench.ranks, "thread ranks of a single process");
  app.add_flag("--kinds", bench.kinds, "print the collectives of a step by kind");
  app.parse(argc, argv);
  return bench;
}

moe_example::Options options_of(const Bench& bench, const std::string& mode) {
  auto o = bench.options;
  o.job.steps += bench.warmup;
  o.balance = mode == "moe_equal" ? "forced" : "none";
  o.dispatcher = mode == "moe_equal" ? "equal" : "all-to-all";
  o.show_load = false;
  return o;
}

void report(const Bench& bench, const std::string& mode, const char* backend, int ranks,
            const std::vector<moe_example::StepRecord>& records, std::int64_t collectives = 0) {
  std::vector<double> ms;
  for (auto i = static_cast<std::size_t>(bench.warmup); i < records.size(); ++i)
    ms.push_back(records[i].step.seconds * 1e3);
  const auto& job = bench.options.job;
  const double median = bench::median(ms);
  const auto& moved = records.back().step.moved;
  const nlohmann::json line = {{"bench", "train"},
                               {"mode", mode},
                               {"backend", backend},
                               {"ranks", ranks},
                               {"hidden", job.hidden},
                               {"ms_median", median},
                               {"ms_min", *std::min_element(ms.begin(), ms.end())},
                               {"tokens_per_s", static_cast<double>(job.batch * job.seq) / median * 1e3},
                               {"ep_bytes", moved.count("ep") > 0 ? moved.at("ep") : 0},
                               {"collectives", collectives / static_cast<std::int64_t>(records.size())},
                               {"loss_last", records.back().step.loss}};
  std::cout << line.dump() << std::endl;
}

void run(const Bench& bench, const dtensor::Communicator& world, const train::Corpus& corpus) {
  for (const auto& mode : bench.modes) {
    const auto options = options_of(bench, mode);
    if (mode == "moe_local") {
      if (world.size() == 1) report(bench, mode, "none", 1, moe_example::train_on_one_device(options, corpus));
      continue;
    }
    std::int64_t collectives = 0;
    std::map<std::string, std::int64_t> kinds;
    std::vector<moe_example::StepRecord> records;
    {
      const dtensor::EventListener counter([&](const dtensor::Event& event) {
        if (event.kind != dtensor::Event::Kind::collective) return;
        ++collectives;
        ++kinds[event.name + " " + event.axis];
      });
      records = moe_example::train_on_mesh(world, options, corpus);
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
  const Bench bench = parse(argc, argv);
  const auto corpus = train::Corpus::read({}, bench.options.job.seq);
  return dtensor::launch(argc, argv, [&](dtensor::Communicator world) { run(bench, world, corpus); });
}
