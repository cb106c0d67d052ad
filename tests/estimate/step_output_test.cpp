// The Chrome trace and the plot of a replayed step agree with its estimate.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "dtensor/estimate.h"
#include "dtensor/fully_shard.h"
#include "dtensor/mesh.h"
#include "dtensor/nn.h"
#include "dtensor/tensor.h"

namespace estimate {
namespace {

using namespace dtensor;

constexpr std::int64_t kSize = 256;

void train(const Communicator& world) {
  const auto mesh = init_device_mesh(world, at::kCPU, {world.size() / 2, 2}, {"replicate", "shard"});
  nn::Linear first(kSize, kSize, /*bias=*/false, at::kMeta), second(kSize, kSize, /*bias=*/false, at::kMeta);
  for (auto* layer : {&first, &second}) fully_shard(*layer, mesh), layer->reset();
  StepRecorder::begin_step();
  const auto x = distribute_tensor(at::randn({8 * world.size(), kSize}), mesh, {Shard(0), Shard(0)});
  StepRecorder::mark("forward");
  const auto y = second.forward(first.forward(x)).square().sum();
  StepRecorder::mark("backward");
  y.backward();
}

HardwareModel hardware(bool asynchronous) {
  HardwareModel h;
  h.rates = {{"product", {{1, 1e10}}}, {"elementwise", {{1, 1e9}}}};
  h.operator_seconds = 1e-6, h.asynchronous = asynchronous;
  h.levels = {{"node", 2, 1e-6, 1e9}, {"rack", 8, 1e-5, 1e8}};
  return h;
}

using Json = nlohmann::json;

// Sums of durations in seconds by row. Slices of a row must not overlap.
std::map<std::string, double> seconds_by_row(const Json& trace) {
  std::map<int, std::string> names;
  std::map<std::string, double> sums, ends;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    const auto& row = names.at(event.at("tid"));
    const double begin = event.at("ts"), seconds = event.at("dur");
    EXPECT_GE(begin, ends[row] - 1e-6) << event;
    ends[row] = begin + seconds;
    sums[row] += 1e-6 * seconds;
  }
  return sums;
}

TEST(StepOutput, DurationsOfTheChromeTraceAreThoseOfTheEstimate) {
  for (const bool asynchronous : {false, true}) {
    const auto report = dry_run({.ranks = 4, .trace = true, .asynchronous = asynchronous}, train);
    const auto estimate = estimate_step(report.trace, hardware(asynchronous));
    const auto sums = seconds_by_row(Json::parse(step_chrome_trace(report, hardware(asynchronous))));
    EXPECT_NEAR(sums.at("operators"), estimate.seconds, 1e-9);
    ASSERT_GE(estimate.communication_by_axis.size(), 2u);
    for (const auto& [axis, seconds] : estimate.communication_by_axis) {
      EXPECT_NEAR(sums.at("collectives on " + axis), seconds, 1e-9) << axis;
    }
    double marks = 0;
    for (const auto& [name, seconds] : estimate.marks) marks += seconds;
    EXPECT_NEAR(sums.at("marks"), marks, 1e-9);
    EXPECT_GT(estimate.exposed, 0);
  }
}

// The memory of the events has the peak of the report.
TEST(StepOutput, MemoryHasThePeakOfTheReport) {
  const auto report = dry_run({.ranks = 4, .trace = true, .trace_memory = true}, train);
  ASSERT_EQ(report.trace.memory.size(), report.trace.events.size());
  const auto total = [](const MemoryByKind& m) { return std::accumulate(m.begin(), m.end(), std::int64_t{0}); };
  const auto highest = std::max_element(report.trace.memory.begin(), report.trace.memory.end(),
                                        [&](const auto& a, const auto& b) { return total(a) < total(b); });
  EXPECT_EQ(total(*highest), report.peak.bytes);
  std::int64_t counters = 0;
  const auto trace = Json::parse(step_chrome_trace(report, hardware(true)));
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "C") continue;
    std::int64_t sum = 0;
    for (const auto& [kind, bytes] : event.at("args").items()) sum += bytes.get<std::int64_t>();
    counters = std::max(counters, sum);
  }
  EXPECT_EQ(counters, report.peak.bytes);
  const auto svg = step_memory_svg(report, hardware(true));
  for (const char* text : {"</svg>", "estimated time of the step, ms", "gathered", "activations"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
}

TEST(StepOutput, MemoryIsRecordedOnlyWhereAskedFor) {
  const auto report = dry_run({.ranks = 4, .trace = true}, train);
  EXPECT_FALSE(report.trace.events.empty());
  EXPECT_TRUE(report.trace.memory.empty());
  EXPECT_EQ(step_chrome_trace(report, hardware(true)).find("\"memory\""), std::string::npos);
  EXPECT_THROW(step_memory_svg(report, hardware(true)), c10::Error);
}

}  // namespace
}  // namespace estimate
