// Loading a folder of safetensors from the page cache, compared with `cat FILE > /dev/null`, alternating, and its
// memory: bench_load --gigabytes 2 --ranks 2. Creates the folder and removes it.
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dtensor/debug.h"
#include "dtensor/dtensor.h"

namespace {

namespace fs = std::filesystem;
using dtensor::Placements;

struct Weight {
  std::string name;
  std::vector<std::int64_t> sizes;
  Placements placements;
};

// Weights of a decoder. With tensor parallelism: row-wise, column-wise and replicated ones. With units of fully_shard:
// sharded by rows. Otherwise replicated.
std::vector<Weight> weights(std::int64_t bytes, const std::string& split) {
  constexpr std::int64_t kHidden = 2048, kInner = 5632;
  const Placements full = {dtensor::Replicate()};
  const Placements rows = split == "none" ? full : Placements{dtensor::Shard(0)};
  const Placements columns = split == "tp" ? Placements{dtensor::Shard(1)} : rows;
  std::vector<Weight> all;
  for (std::int64_t layer = 0, made = 0; made < bytes; ++layer) {
    const auto add = [&](const char* name, std::vector<std::int64_t> sizes, const Placements& placements) {
      made += 4 * c10::multiply_integers(sizes);
      all.push_back({c10::str("layers.", layer, ".", name), std::move(sizes), placements});
    };
    add("norm", {kHidden}, full);
    add("q", {kHidden, kHidden}, rows);
    add("o", {kHidden, kHidden}, columns);
    add("up", {kInner, kHidden}, rows);
    add("down", {kHidden, kInner}, columns);
  }
  return all;
}

void write_folder(const fs::path& folder, const std::vector<Weight>& all) {
  nlohmann::ordered_json header;
  std::int64_t at = 0;
  for (const Weight& w : all) {
    const std::int64_t end = at + 4 * c10::multiply_integers(w.sizes);
    header[w.name] = {{"dtype", "F32"}, {"shape", w.sizes}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::ofstream file(folder / "model.safetensors", std::ios::binary);
  const std::uint64_t length = text.size();
  file.write(reinterpret_cast<const char*>(&length), 8) << text;
  const at::Tensor block = at::randn({1 << 20});
  for (std::int64_t left = at; left > 0; left -= 4 << 20)
    file.write(static_cast<const char*>(block.const_data_ptr()), std::min<std::int64_t>(left, 4 << 20));
}

// The same with checksums, as the library writes it.
void save_folder(const fs::path& folder, const std::vector<Weight>& all) {
  dtensor::run_local(1, [&](const dtensor::Communicator& world) {
    dtensor::StateTensors state;
    for (const Weight& w : all) state.emplace_back(w.name, at::randn(w.sizes));
    save_state(folder.string(), world, state, {}, {.sync = false});
  });
}

double seconds(const std::function<void()>& fn) {
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds of the slowest rank, and the largest peak beyond the loaded tensors.
std::pair<double, std::int64_t> load(const fs::path& folder, const std::vector<Weight>& all, int ranks) {
  std::vector<double> time(static_cast<std::size_t>(ranks));
  std::vector<std::int64_t> peak(time.size());
  dtensor::run_local(ranks, [&](const dtensor::Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto mesh = dtensor::init_device_mesh(world, at::kCPU, {ranks}, {"tp"});
    dtensor::StateTensors targets;
    for (const Weight& w : all) targets.emplace_back("model." + w.name, dtensor::zeros(w.sizes, mesh, w.placements));
    dtensor::LoadOptions options;
    options.names = {{"model.**", "**"}};
    const dtensor::MemoryTimeline memory(1 << 20);
    world.barrier();
    time[rank] = seconds([&] { load_state(folder.string(), world, targets, options); });
    peak[rank] = memory.peak().bytes;
  });
  return {*std::max_element(time.begin(), time.end()), *std::max_element(peak.begin(), peak.end())};
}

}  // namespace

int main(int argc, char** argv) {
  double gigabytes = 2;
  int ranks = 2, turns = 5;
  bool checksums = false;
  std::string split = "tp";
  std::string where = fs::temp_directory_path().string();
  CLI::App app("Loading beside cat.");
  app.add_option("--gigabytes", gigabytes)->capture_default_str();
  app.add_option("--ranks", ranks)->capture_default_str();
  app.add_option("--turns", turns)->capture_default_str();
  app.add_option("--split", split, "placements of the weights")
      ->check(CLI::IsMember({"tp", "shard", "none"}))
      ->capture_default_str();
  app.add_flag("--checksums", checksums, "use a folder that the library writes, and verify its checksums");
  app.add_option("--folder", where, "folder to create")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const fs::path folder = fs::path(where) / c10::str("dtensor_bench_load_", ::getpid());
  fs::create_directories(folder);
  const auto all = weights(static_cast<std::int64_t>(gigabytes * 1e9), split);
  checksums ? save_folder(folder, all) : write_folder(folder, all);
  const auto bytes = static_cast<double>(fs::file_size(folder / "model.safetensors"));
  const std::string cat = "cat " + (folder / "model.safetensors").string() + " > /dev/null";
  std::vector<double> cats, loads;
  for (int turn = 0; turn < turns; ++turn) {
    const double regular = seconds([&] {
      if (std::system(cat.c_str()) != 0) std::exit(1);
    });
    const auto [own, peak] = load(folder, all, ranks);
    cats.push_back(regular), loads.push_back(own);
    std::printf("cat %.2f GB/s, load %.2f GB/s on %d ranks, %.1f MiB beyond the tensors\n", bytes / regular / 1e9,
                bytes / own / 1e9, ranks, static_cast<double>(peak) / (1 << 20));
  }
  std::printf("median of %d: %.2f times the speed of cat\n", turns, median(cats) / median(loads));
  fs::remove_all(folder);
}
