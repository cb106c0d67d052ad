// Time and memory of planning itself: one dry run of a rank with its report, and the search over all meshes.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <functional>

#include "llm/hf/hf_config.h"
#include "plan/decoder_cost.h"
#include "program_data.h"

namespace {

using namespace dtensor;

double peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1000;
}

void measure(const char* what, const std::function<std::string()>& fn) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string result = fn();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%-48s %7.2f s %6.0f MB  %s\n", what, seconds, peak_megabytes(), result.c_str());
}

plan::Workload workload(const std::string& preset, std::int64_t batch, std::int64_t sequence) {
  return {llm::read_family(program_data("plan/presets/" + preset)).config, batch, sequence};
}

std::string run(const plan::Workload& work, const ParallelLayout& layout, const HardwareModel& hardware) {
  const auto cost = planned_decoder(work, hardware, /*exact=*/true).cost(layout);
  char text[120];
  std::snprintf(text, sizeof text, "%.3g s a step, %.1f GB", cost.seconds, 1e-9 * static_cast<double>(cost.peak_bytes));
  return text;
}

std::string search(const plan::Workload& work, const LayoutSpace& space, std::int64_t ep,
                   const HardwareModel& hardware) {
  auto all = enumerate_layouts(space);
  for (auto& layout : all) layout.ep = ep;
  const SearchLimits limits{.memory_bytes = 80'000'000'000, .most_runs = 40};
  const auto found = search_layouts(all, planned_decoder(work, hardware), limits);
  return found.fitting.empty() ? "nothing fits" : found.fitting.front().layout.str();
}

}  // namespace

int main() {
  const auto hardware = HardwareModel::read(program_data("plan/hardware/h100.json"));
  const auto llama = workload("llama3-70b", 4096, 8192), deepseek = workload("deepseek-v3", 512, 4096);
  const auto full = Recomputation::full;
  measure("70B, 16384 ranks: shard=256,tp=8,pp=8", [&] {
    return run(llama, {.pp = 8, .shard = 256, .tp = 8, .microbatches = 16, .recompute = full, .bf16 = true}, hardware);
  });
  measure("70B, 16384 ranks: shard=2048,tp=8",
          [&] { return run(llama, {.shard = 2048, .tp = 8, .recompute = full, .bf16 = true}, hardware); });
  measure("DeepSeek-V3, 512 ranks: shard=512,ep=64",
          [&] { return run(deepseek, {.shard = 512, .ep = 64, .recompute = full, .bf16 = true}, hardware); });
  const auto large = workload("deepseek-v3", 16384, 4096);
  measure("DeepSeek-V3, 16384 ranks: pp=16,shard=1024,ep=64", [&] {
    return run(large, {.pp = 16, .shard = 1024, .ep = 64, .microbatches = 16, .recompute = full, .bf16 = true},
               hardware);
  });
  const LayoutSpace llama_space{.ranks = 16384, .max_pp = 16, .microbatches = {1, 2, 4, 8, 16, 32, 64}};
  const LayoutSpace deepseek_space{.ranks = 512, .max_pp = 16, .max_tp = 1, .microbatches = {1, 2, 4, 8, 16, 32}};
  measure("70B, 16384 ranks: search", [&] { return search(llama, llama_space, 1, hardware); });
  measure("DeepSeek-V3, 512 ranks, ep=64: search", [&] { return search(deepseek, deepseek_space, 64, hardware); });
}
