// The same bits: hashes of parameters and optimizer states after training on many layouts of thread ranks, and the time
// of a step in a BitIdentical scope against the ordinary one.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "dtensor/comm.h"
#include "dtensor/pipeline_schedule.h"
#include "timing.h"
#include "train/run.h"

namespace {

using train::MeshShape;
using train::Options;
using Change = std::function<void(Options&)>;

struct Layout {
  std::string name;
  MeshShape mesh = {};
  Change change = {};
  int threads = 1;
};

std::vector<Layout> layouts() {
  std::vector<Layout> all{{.name = "one device"}, {.name = "one device, 2 threads", .threads = 2}};
  for (const std::int64_t n : {2, 3, 4}) all.push_back({"tp " + std::to_string(n), {.tp = n}});
  for (const std::int64_t n : {2, 3}) all.push_back({"fsdp " + std::to_string(n), {.shard = n}});
  all.push_back({"hsdp 2 x 2", {.replicate = 2, .shard = 2}});
  all.push_back({"fsdp 2 x tp 2", {.shard = 2, .tp = 2}});
  all.push_back({"tp 2, sequence parallel", {.tp = 2}, [](Options& o) { o.sequence_parallel = true; }});
  for (const char* s : {"ring", "gather", "ulysses"}) {
    all.push_back({std::string("cp 2, ") + s, {.cp = 2}, [=](Options& o) { o.cp_strategy = s; }});
  }
  all.push_back({"cp 2, zigzag", {.cp = 2}, [](Options& o) { o.zigzag_sequence = true; }});
  all.push_back({"fsdp 2, recomputation", {.shard = 2}, [](Options& o) { o.checkpoint_activations = true; }});
  all.push_back({"fsdp 2, 2 microbatches", {.shard = 2}, [](Options& o) { o.grad_accum = 2; }});
  for (const std::string& s : dtensor::pipeline::schedule_names()) {
    all.push_back({"pp 2, " + s, {.pp = 2}, [=](Options& o) { o.schedule = s, o.microbatches = 2; }});
  }
  return all;
}

// Medians are over the steps after the first.
struct Run {
  std::string hash;
  double ms = 0;
};

Run train_on(const Layout& layout, Options options, const train::Corpus& corpus) {
  options.mesh = layout.mesh;
  if (layout.change) layout.change(options);
  Run run;
  dtensor::RunOptions ranks;
  ranks.set_threads = false;
  dtensor::run_local(
      static_cast<int>(layout.mesh.size()),
      [&](const dtensor::Communicator& world) {
        at::set_num_threads(layout.threads);
        const auto records = train::train_on_mesh(world, options, corpus, {});
        if (world.rank() != 0) return;
        std::vector<double> ms;
        for (std::size_t i = 1; i < records.size(); ++i) ms.push_back(1e3 * records[i].seconds);
        run = {records.back().content_hash, bench::median(ms)};
      },
      ranks);
  return run;
}

// Returns whether all layouts have the hash of the first.
bool publish_hashes(const std::string& model, const Options& options, const std::vector<Layout>& all,
                    const train::Corpus& corpus) {
  std::string expected;
  bool same = true;
  for (const Layout& layout : all) {
    const Run run = train_on(layout, options, corpus);
    if (expected.empty()) expected = run.hash;
    same = same && run.hash == expected;
    const nlohmann::json line{{"bench", "bits"},        {"model", model},     {"layout", layout.name},
                              {"steps", options.steps}, {"sha256", run.hash}, {"same", run.hash == expected}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  return same;
}

// Alternates both runs, so that disturbances affect both.
void publish_time(const Layout& layout, Options options, int pairs, const train::Corpus& corpus) {
  std::vector<double> ordinary, scoped, ratios;
  for (int i = 0; i < pairs; ++i) {
    for (const bool scope : {false, true}) {
      options.bit_identical = scope;
      (scope ? scoped : ordinary).push_back(train_on(layout, options, corpus).ms);
    }
    ratios.push_back(scoped.back() / ordinary.back());
  }
  const nlohmann::json line{
      {"bench", "bits"},
      {"layout", layout.name},
      {"hidden", options.hidden},
      {"ms_ordinary", bench::median(ordinary)},
      {"ms_median", bench::median(scoped)},
      {"ratio", bench::median(ratios)},
      {"ratio_range",
       {*std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end())}}};
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  int pairs = 5;
  std::int64_t hidden = 256;
  options.bit_identical = true;
  options.hidden = 48, options.batch = 4, options.seq = 32, options.steps = 100, options.lr = 1e-2;
  CLI::App app("Hashes of training on many layouts of thread ranks, and the time of a step with the same bits");
  app.add_option("--steps", options.steps, "steps before a hash")->check(CLI::Range(2, 1 << 20));
  app.add_option("--hidden", hidden, "hidden size of the timed model");
  app.add_option("--pairs", pairs, "timed pairs of runs; 0: none")->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  const auto corpus = train::Corpus::read({}, 128);
  const auto all = layouts();
  bool same = publish_hashes("gpt", options, all, corpus);
  auto other = options;
  other.optimizer = "muon";
  const std::vector<Layout> few{all[0], all[2], all[5], all[8]};
  same = publish_hashes("gpt, Muon", other, few, corpus) && same;
  other = options;
  other.bf16 = true;
  same = publish_hashes("gpt, bfloat16", other, few, corpus) && same;
  options.hidden = hidden, options.batch = 8, options.seq = 64, options.steps = 6;
  for (const Layout& layout : {all[1], all[2], all[5]}) {
    if (pairs > 0) publish_time(layout, options, pairs, corpus);
  }
  return same ? 0 : 1;
}
