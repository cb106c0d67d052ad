// The trace of a run shows when each step, phase and module ran, the operands of operators, the ranks of each
// collective, and allocated memory.
#include "train/plots/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "dtensor/launch.h"
#include "support/folder.h"
#include "train/data/data.h"
#include "train/run.h"

namespace {

nlohmann::json trace_of(const train::Options& o, int ranks) {
  const dtensor::test::Folder folder;
  const std::string path = folder / "trace.json";
  const auto corpus = train::Corpus::read({}, o.seq);
  dtensor::run_local(ranks, [&](const dtensor::Communicator& world) {
    train::Trace trace(world);
    for (const auto& record : train::train_on_mesh(world, o, corpus, {})) trace.add(record);
    trace.write(path);
  });
  return nlohmann::json::parse(std::ifstream(path))["traceEvents"];
}

// Names of the slices in a rank's row.
std::map<std::string, int> row(const nlohmann::json& events, int rank, int tid) {
  std::map<std::string, int> names;
  for (const auto& e : events) {
    if (e["ph"] == "X" && e["pid"] == rank && e["tid"] == tid) ++names[e["name"]];
  }
  return names;
}

TEST(Trace, HasStepsPhasesModulesFlowsAndMemory) {
  train::Options o;
  o.batch = 4, o.seq = 16, o.hidden = 16, o.layers = 2, o.steps = 2;
  o.mesh = train::MeshShape{.shard = 2};
  const auto events = trace_of(o, 2);
  std::set<std::string> modules, axes;
  std::map<std::uint64_t, std::map<std::string, int>> flows;
  std::map<std::uint64_t, std::set<int>> ends;
  std::int64_t memory = 0;
  bool operands = false;
  for (const auto& e : events) {
    if (e["ph"] == "C") memory = std::max(memory, e["args"]["bytes"].get<std::int64_t>());
    if (e["ph"] == "s" || e["ph"] == "f" || e["ph"] == "t") {
      ++flows[e["id"]][e["ph"]];
      ends[e["id"]].insert(e["pid"].get<int>());
    }
    if (e["ph"] != "X" || !e.contains("args")) continue;
    if (e["args"].contains("module")) modules.insert(e["args"]["module"]);
    if (e["args"].contains("mesh axis")) axes.insert(e["args"]["mesh axis"]);
    operands =
        operands || (e["args"].contains("operands") && e["args"]["operands"].get<std::string>().starts_with("f32["));
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(row(events, rank, 2), (std::map<std::string, int>{{"step 0", 1}, {"step 1", 1}}));
    const auto phases = row(events, rank, 3);
    for (const char* phase : {"forward", "backward", "optimizer"}) EXPECT_GE(phases.count(phase), 1U) << phase;
    EXPECT_FALSE(row(events, rank, 4).empty());
  }
  EXPECT_TRUE(modules.count("layers.1.mlp")) << nlohmann::json(modules);
  EXPECT_TRUE(axes.count("shard")) << nlohmann::json(axes);
  EXPECT_TRUE(operands);
  EXPECT_GT(memory, 0);
  ASSERT_FALSE(flows.empty());
  for (const auto& [id, kinds] : flows) {
    EXPECT_EQ(kinds, (std::map<std::string, int>{{"s", 1}, {"f", 1}})) << id;
    EXPECT_EQ(ends[id].size(), 2U);
  }
}

}  // namespace
