// The same bits: hashes of parameters and optimizer states after training on many layouts of thread ranks, and time and
// memory of a step in a BitIdentical scope against the ordinary one.
#include <ATen/Parallel.h>

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "dtensor/comm.h"
#include "dtensor/debug.h"
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
  std::optional<MeshShape> second = {};  // of the second half of the steps
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
  for (const int n : {2, 3}) {
    all.push_back({c10::str("fsdp 2, ", n, " microbatches"), {.shard = 2}, [=](Options& o) { o.grad_accum = n; }});
  }
  all.push_back({.name = "fsdp 2, then tp 2", .mesh = {.shard = 2}, .second = MeshShape{.tp = 2}});
  for (const std::string& s : dtensor::pipeline::schedule_names()) {
    all.push_back({"pp 2, " + s, {.pp = 2}, [=](Options& o) { o.schedule = s, o.microbatches = 2; }});
  }
  return all;
}

// Six rows in parts of two.
std::vector<Layout> layouts_of_three_parts() {
  std::vector<Layout> all{{.name = "one device"}};
  all.push_back({"fsdp 2, 3 microbatches", {.shard = 2}, [](Options& o) { o.grad_accum = 3; }});
  all.push_back({"tp 2, 3 microbatches", {.tp = 2}, [](Options& o) { o.grad_accum = 3; }});
  for (const std::string& s : dtensor::pipeline::schedule_names()) {
    all.push_back(
        {"pp 2, " + s + ", 3 microbatches", {.pp = 2}, [=](Options& o) { o.schedule = s, o.microbatches = 3; }});
  }
  return all;
}

std::vector<Layout> layouts_of_experts() {
  std::vector<Layout> all{{.name = "one device"}, {.name = "one device, 2 threads", .threads = 2}};
  const auto add = [&](std::string name, MeshShape mesh, std::int64_t ep, std::int64_t etp, const Change& change = {}) {
    all.push_back({std::move(name), mesh, [=](Options& o) {
                     o.experts->ep = ep, o.experts->etp = etp;
                     if (change) change(o);
                   }});
  };
  add("fsdp 2, ep 2", {.shard = 2}, 2, 1);
  add("fsdp 4, ep 4", {.shard = 4}, 4, 1);
  add("fsdp 4, ep 2", {.shard = 4}, 2, 1);
  add("fsdp 2, ep 1", {.shard = 2}, 1, 1);
  add("tp 2, ep 2", {.tp = 2}, 2, 1);
  add("fsdp 2 x tp 2, ep 2 x etp 2", {.shard = 2, .tp = 2}, 2, 2);
  add("tp 2, sequence parallel, ep 2", {.tp = 2}, 2, 1, [](Options& o) { o.sequence_parallel = true; });
  add("cp 2, ep 2", {.cp = 2}, 2, 1);
  add("fsdp 2, ep 2, recomputation", {.shard = 2}, 2, 1, [](Options& o) { o.checkpoint_activations = true; });
  add("fsdp 2, ep 2, then tp 2", {.shard = 2}, 2, 1);
  all.back().second = MeshShape{.tp = 2};
  return all;
}

// Parts of two rows.
std::vector<Layout> layouts_of_experts_in(int parts) {
  std::vector<Layout> all{{.name = "one device"}};
  const auto add = [&](const char* name, MeshShape mesh, std::int64_t ep, std::int64_t etp, const Change& in_parts) {
    all.push_back({c10::str(name, ", ", parts, " microbatches"), mesh, [=](Options& o) {
                     o.experts->ep = ep, o.experts->etp = etp;
                     in_parts(o);
                   }});
  };
  const auto accumulates = [=](Options& o) { o.grad_accum = parts; };
  add("one device", {}, 1, 1, accumulates);
  add("fsdp 2, ep 2", {.shard = 2}, 2, 1, accumulates);
  add("fsdp 4, ep 4", {.shard = 4}, 4, 1, accumulates);
  add("fsdp 2, ep 1", {.shard = 2}, 1, 1, accumulates);
  add("fsdp 2 x tp 2, ep 2 x etp 2", {.shard = 2, .tp = 2}, 2, 2, accumulates);
  add("fsdp 2, ep 2, recomputation", {.shard = 2}, 2, 1,
      [=](Options& o) { o.grad_accum = parts, o.checkpoint_activations = true; });
  for (const std::string& s : dtensor::pipeline::schedule_names()) {
    add(("pp 2, " + s).c_str(), {.pp = 2}, 1, 1, [=](Options& o) { o.schedule = s, o.microbatches = parts; });
  }
  return all;
}

// Medians are over the steps after the first. The peak is of rank 0, if it is measured.
struct Run {
  std::string hash, refusal;
  double ms = 0;
  std::int64_t peak_bytes = 0;
};

Run train_on(const Layout& layout, Options options, const train::Corpus& corpus, bool measures_memory = false) {
  options.mesh = layout.mesh;
  if (layout.change) layout.change(options);
  Run run;
  dtensor::RunOptions ranks;
  ranks.set_threads = false;
  dtensor::run_local(
      static_cast<int>(options.mesh->size()),
      [&](const dtensor::Communicator& world) {
        at::set_num_threads(layout.threads);
        std::optional<dtensor::MemoryTimeline> memory;
        if (measures_memory) memory.emplace();
        const auto records = train::train_on_mesh(world, options, corpus, {});
        if (world.rank() != 0) return;
        std::vector<double> ms;
        for (std::size_t i = 1; i < records.size(); ++i) ms.push_back(1e3 * records[i].seconds);
        run = {records.back().content_hash, {}, bench::median(ms), memory ? memory->peak().bytes : 0};
      },
      ranks);
  return run;
}

// Both halves of the steps, on one mesh and the other.
Run train_in_halves(const Layout& layout, const Options& options, const train::Corpus& corpus) {
  const auto folder = std::filesystem::temp_directory_path() / ("dtensor_bits_" + std::to_string(::getpid()));
  auto half = layout;
  half.change = [&](Options& o) {
    if (layout.change) layout.change(o);
    o.steps /= 2, o.save = folder.string();
  };
  train_on(half, options, corpus);
  half.change = [&](Options& o) {
    if (layout.change) layout.change(o);
    o.mesh = layout.second, o.load = folder.string();
  };
  auto run = train_on(half, options, corpus);
  std::filesystem::remove_all(folder);
  return run;
}

// What has no form is an error by name.
Run run_or_refusal(const Layout& layout, const Options& options, const train::Corpus& corpus) {
  try {
    return layout.second ? train_in_halves(layout, options, corpus) : train_on(layout, options, corpus);
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    if (what.find("has no bit-identical form") == std::string::npos) throw;
    return {{}, what, 0};
  }
}

// Returns whether all layouts have the hash of the first, or are refused.
bool publish_hashes(const std::string& model, const Options& options, const std::vector<Layout>& all,
                    const train::Corpus& corpus) {
  std::string expected;
  bool same = true;
  for (const Layout& layout : all) {
    const Run run = run_or_refusal(layout, options, corpus);
    if (expected.empty()) expected = run.hash;
    nlohmann::json line{{"bench", "bits"}, {"model", model}, {"layout", layout.name}, {"steps", options.steps}};
    if (run.refusal.empty()) {
      same = same && run.hash == expected;
      line["sha256"] = run.hash, line["same"] = run.hash == expected;
    } else {
      line["refused"] = run.refusal;
    }
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  return same;
}

// Alternates both runs, so that disturbances affect both. Peaks are of runs of their own.
void publish_time_and_memory(const Layout& layout, Options options, int pairs, const train::Corpus& corpus) {
  std::vector<double> ordinary, scoped, ratios;
  for (int i = 0; i < pairs; ++i) {
    for (const bool scope : {false, true}) {
      options.bit_identical = scope;
      (scope ? scoped : ordinary).push_back(train_on(layout, options, corpus).ms);
    }
    ratios.push_back(scoped.back() / ordinary.back());
  }
  const auto peak = [&](bool scope) {
    options.bit_identical = scope;
    return train_on(layout, options, corpus, /*measures_memory=*/true).peak_bytes;
  };
  const auto peak_ordinary = peak(false), peak_scoped = peak(true);
  const nlohmann::json line{
      {"bench", "bits"},
      {"layout", layout.name},
      {"hidden", options.hidden},
      {"ms_ordinary", bench::median(ordinary)},
      {"ms_median", bench::median(scoped)},
      {"ratio", bench::median(ratios)},
      {"ratio_range",
       {*std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end())}},
      {"peak_bytes_ordinary", peak_ordinary},
      {"peak_bytes", peak_scoped},
      {"memory_ratio", static_cast<double>(peak_scoped) / static_cast<double>(peak_ordinary)}};
  std::printf("%s\n", line.dump().c_str());
}

struct Model {
  std::string name;
  Options options;
  std::vector<Layout> layouts;
};

std::vector<Model> models_of(const Options& options) {
  const auto all = layouts(), split = layouts_of_experts();
  const std::vector<Layout> few{all[0], all[2], all[5], all[8]};
  std::vector<Model> models{{"gpt", options, all},
                            {"gpt, Muon", options, few},
                            {"gpt, bfloat16", options, few},
                            {"gpt, documents", options, {all[0], all[1], all[2], all[5], all[8], all[10]}},
                            {"gpt, experts", options, split},
                            {"gpt, experts, Muon, documents", options, {split[0], split[2], split[7]}},
                            {"gpt, 6 rows", options, layouts_of_three_parts()},
                            {"gpt, 6 rows, documents", options, layouts_of_three_parts()},
                            {"gpt, experts with a bias", options, layouts_of_experts_in(2)},
                            {"gpt, experts with a bias, 6 rows", options, layouts_of_experts_in(3)},
                            {"gpt, experts with a bias, Muon, documents", options, layouts_of_experts_in(2)}};
  for (const int i : {1, 5, 10}) models[static_cast<std::size_t>(i)].options.optimizer = "muon";
  models[2].options.bf16 = true;
  for (const int i : {3, 5, 7, 10}) models[static_cast<std::size_t>(i)].options.documents = true;
  for (const int i : {6, 7, 9}) models[static_cast<std::size_t>(i)].options.batch = 6;
  for (const int i : {4, 5, 8, 9, 10}) {
    auto& experts = models[static_cast<std::size_t>(i)].options.experts.emplace();
    experts.experts = 4, experts.z_loss = 0.01, experts.show_load = false;
    if (i >= 8) experts.balance = "bias";  // the loss of balance is no sum over microbatches
  }
  return models;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  int pairs = 5;
  std::int64_t hidden = 256;
  std::string only;
  options.bit_identical = true;
  options.hidden = 48, options.batch = 4, options.seq = 32, options.steps = 100, options.lr = 1e-2;
  CLI::App app("Hashes of training on many layouts of thread ranks, and time and memory of a step with the same bits");
  app.add_option("--steps", options.steps, "steps before a hash")->check(CLI::Range(2, 1 << 20));
  app.add_option("--hidden", hidden, "hidden size of the timed model");
  app.add_option("--pairs", pairs, "timed pairs of runs; 0: none")->check(CLI::NonNegativeNumber);
  app.add_option("--only", only, "hashes of models with this text in their name only");
  CLI11_PARSE(app, argc, argv);
  const auto corpus = train::Corpus::read({}, 128);
  bool same = true;
  for (const Model& model : models_of(options)) {
    const bool chosen = model.name.find(only) != std::string::npos;
    same = (!chosen || publish_hashes(model.name, model.options, model.layouts, corpus)) && same;
  }
  options.hidden = hidden, options.batch = 8, options.seq = 64, options.steps = 6;
  const auto all = layouts();
  for (const Layout& layout : {all[1], all[2], all[5]}) {
    if (pairs > 0) publish_time_and_memory(layout, options, pairs, corpus);
  }
  return same ? 0 : 1;
}
