// Measures communication and memory of one training step of apps/train on rank 0.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "dtensor/debug.h"
#include "dtensor/events.h"
#include "dtensor/inspect.h"
#include "dtensor/launch.h"
#include "train/run.h"

namespace costs {

struct Count {
  std::int64_t calls = 0, bytes = 0;  // received from other ranks
  friend bool operator==(const Count&, const Count&) = default;
};
inline void add(Count& count, std::int64_t calls, std::int64_t bytes) { count.calls += calls, count.bytes += bytes; }
using Counts = std::map<std::string, Count>;  // key "all_gather shard"; "scalars": sums of single numbers on any axis

struct Step {
  Counts counts;
  Counts all, by_module;  // including single numbers: from events, and summed from CommDebugMode
  train::RankMemory measured;
  dtensor::CacheStats calls;  // operators on DTensors in that step
};

inline dtensor::CacheStats operator-(dtensor::CacheStats a, const dtensor::CacheStats& b) {
  a.hits -= b.hits, a.misses -= b.misses, a.key_lookups -= b.key_lookups, a.boxed_hits -= b.boxed_hits;
  return a;
}

// Returns communication of the last of four steps, when caches and orders are recorded. Memory is the maximum of all
// steps. Cache statistics are those of the previous step, which runs without CommDebugMode.
inline Step measure(train::Options options, const train::Corpus& corpus) {
  options.steps = 4;
  if (options.experts) options.experts->show_load = false;
  Step result;
  dtensor::run_local(static_cast<int>(options.mesh->size()), [&](const dtensor::Communicator& world) {
    Counts counts, all;
    std::optional<dtensor::CommDebugMode> comms;
    const dtensor::EventListener listener(
        [&](const dtensor::Event& event) {
          add(all[event.name + " " + event.axis], 1, event.bytes);
          const bool scalar = event.name == "all_reduce" && event.bytes < 24;  // up to three numbers
          add(counts[scalar ? "scalars" : event.name + " " + event.axis], 1, scalar ? 0 : event.bytes);
        },
        {dtensor::Event::Kind::collective});
    train::MemoryUse memory;
    dtensor::CacheStats calls;
    const auto forget = [&](const train::StepRecord& record) {
      if (record.step == 3 && world.rank() == 0) {
        result.counts = counts;
        result.all = all;
        for (const auto& [key, count] : comms->counts()) {
          add(result.by_module[key.kind + " " + key.axis], count.calls, count.bytes);
        }
      }
      counts.clear();
      all.clear();
      comms.reset();
      if (record.step == 2) comms.emplace();
      if (record.step == 2 && world.rank() == 0) result.calls = dtensor::cache_stats() - calls;
      calls = dtensor::cache_stats();
    };
    train::train_on_mesh(world, options, corpus, forget, &memory);
    if (world.rank() == 0) result.measured = memory.measured;
  });
  return result;
}

}  // namespace costs
