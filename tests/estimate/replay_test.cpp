// Estimated times against formulas and against a second, simpler simulation.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "dtensor/estimate.h"
#include "internal/action_kinds.h"

namespace estimate {
namespace {

using namespace dtensor;
using Kind = StepTrace::Kind;

HardwareModel hardware(bool asynchronous) {
  HardwareModel h;
  h.name = "test";
  h.rates = {{"product", {{1e3, 1e9}, {1e6, 1e12}}}, {"elementwise", {{1, 1e10}}}, {"norm", {{1, 1e9}}}};
  h.operator_seconds = 1e-6;
  h.asynchronous = asynchronous;
  h.levels = {{"node", 4, 1e-6, 1e9}, {"rack", 1024, 1e-5, 1e8}};
  return h;
}

StepTrace::Event product(std::int64_t flops) { return {.kind = Kind::product, .flops = flops}; }

TEST(Hardware, RatesAreInterpolated) {
  const auto h = hardware(false);
  EXPECT_NEAR(h.seconds(product(1000)), 1e-6 + 1e-6, 1e-12);
  EXPECT_NEAR(h.seconds(product(1'000'000)), 1e-6 + 1e-6, 1e-12);
  EXPECT_NEAR(h.seconds(product(1'000'000'000)), 1e-6 + 1e-3, 1e-9);
  EXPECT_NEAR(h.seconds(product(31623)), 1e-6 + 31623 / std::sqrt(1e21), 1e-11);  // half way: the geometric mean
  EXPECT_NEAR(h.seconds({.kind = Kind::product, .flops = 1000, .bytes = 1'000'000}), 1e-6 + 1e-4, 1e-9);
  EXPECT_NEAR(h.seconds({.kind = Kind::norm, .bytes = 1'000'000}), 1e-6 + 1e-3, 1e-9);
}

TEST(Hardware, TheRateOfAnOperatorGoesBeforeThatOfItsKind) {
  auto h = hardware(false);
  h.rates["aten::mm float32"] = {{1, 1e8}}, h.rates["aten::add"] = {{1, 1e7}};
  EXPECT_NEAR(h.seconds(product(1'000'000), "aten::mm"), 1e-6 + 1e-2, 1e-9);
  EXPECT_NEAR(h.seconds(product(1'000'000), "aten::bmm"), 1e-6 + 1e-6, 1e-12);
  EXPECT_NEAR(h.seconds({.kind = Kind::product, .dtype = at::kHalf, .flops = 1'000'000}, "aten::mm"), 2e-6, 1e-12);
  EXPECT_NEAR(h.seconds({.dtype = at::kHalf, .bytes = 1000}, "aten::add"), 1e-6 + 1e-4, 1e-9);
  EXPECT_NEAR(h.seconds({.bytes = 1000}, "aten::sub"), 1e-6 + 1e-7, 1e-12);
  StepTrace trace;
  trace.names = {"aten::add"};
  trace.events = {{.bytes = 1000}};
  EXPECT_NEAR(estimate_step(trace, h).seconds, 1e-6 + 1e-4, 1e-9);
}

// The rates of an operator are those of the device.
TEST(Hardware, WorkOfTheHostHasItsOwnRates) {
  auto h = hardware(false);
  h.rates["aten::add"] = {{1, 1e9}};
  EXPECT_ANY_THROW(h.seconds({.kind = Kind::transfer, .bytes = 1000}, "aten::add"));
  h.rates["host"] = {{1, 1e6}}, h.rates["transfer"] = {{1, 1e5}};
  EXPECT_NEAR(h.seconds({.kind = Kind::host, .bytes = 1000}, "aten::add"), 1e-6 + 1e-3, 1e-12);
  EXPECT_NEAR(h.seconds({.kind = Kind::host, .flops = 1000, .bytes = 1000}, "aten::mm"), 1e-6 + 1e-3, 1e-12);
  EXPECT_NEAR(h.seconds({.kind = Kind::transfer, .bytes = 1000}, "aten::add"), 1e-6 + 1e-2, 1e-12);
}

TEST(Hardware, CollectivesUseTheLevelsThatTheyCross) {
  const auto h = hardware(false);
  EXPECT_EQ(h.seconds("all_gather", {3}, 100), 0);
  EXPECT_NEAR(h.seconds("all_gather", {0, 1, 2, 3}, 3000), 2e-6 + 3e-6, 1e-12);
  EXPECT_NEAR(h.seconds("all_reduce", {0, 1, 2, 3}, 3000), 4e-6 + 3e-6, 1e-12);
  EXPECT_NEAR(h.seconds("all_gather", {0, 4, 8, 12}, 3000), 2e-5 + 3e-5, 1e-12);  // one rank of each node
  // Two ranks of each of two nodes: 2 of 3 parts cross the rack, over two links.
  EXPECT_NEAR(h.seconds("all_gather", {0, 1, 4, 5}, 3000), 1e-6 + 1e-5 + 1e-5, 1e-12);
  EXPECT_NEAR(h.seconds("all_to_all", {0, 1, 4, 5}, 3000), 1e-6 + 1e-5 + 2e-5, 1e-12);
}

TEST(Hardware, TableIsReadAsWritten) {
  const auto h = hardware(true);
  EXPECT_EQ(HardwareModel::parse(h.json()).json(), h.json());
  const auto error = [](const auto& fn) -> std::string {
    try {
      fn();
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "";
  };
  EXPECT_NE(error([] { HardwareModel::read("/no/table.json"); }).find("cannot read the hardware table /no/table.json"),
            std::string::npos);
  EXPECT_NE(error([] { HardwareModel::parse("{}"); }).find("not a hardware table"), std::string::npos);
  EXPECT_NE(
      error([&] { h.seconds({.kind = Kind::attention, .flops = 1}); }).find("expected rates of 'attention float32'"),
      std::string::npos);
}

StepTrace random_trace() {
  StepTrace trace;
  trace.names = {"mm", "all_gather"};
  trace.groups = {{"shard", {0, 1, 2, 3}}, {"tp", {0, 4}}};
  std::vector<std::int64_t> started;
  const int events = *rc::gen::inRange(0, 40);
  for (int i = 0; i < events; ++i) {
    const int choice = *rc::gen::inRange(0, started.empty() ? 2 : 3);
    if (choice == 0) trace.events.push_back(product(*rc::gen::inRange<std::int64_t>(1, 1 << 24)));
    if (choice == 1) {
      started.push_back(static_cast<std::int64_t>(trace.events.size()));
      trace.events.push_back({.kind = Kind::collective,
                              .name = 1,
                              .group = *rc::gen::inRange(0, 2),
                              .bytes = *rc::gen::inRange<std::int64_t>(1, 1 << 20)});
    }
    if (choice == 2) {
      const auto start = started.back();
      started.pop_back();
      auto wait = trace.events[static_cast<std::size_t>(start)];
      wait.kind = Kind::wait, wait.start = start;
      trace.events.push_back(wait);
    }
  }
  return trace;
}

// Each event starts at the maximum over what it depends on.
double reference(const StepTrace& trace, const HardwareModel& h) {
  double rank = 0;
  std::vector<double> end(trace.events.size()), link(2);
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const auto& e = trace.events[i];
    if (e.kind == Kind::product) rank = rank + h.seconds(e);
    if (e.kind == Kind::wait) rank = std::max(rank, end[static_cast<std::size_t>(e.start)]);
    if (e.kind != Kind::collective) continue;
    auto& busy = link[static_cast<std::size_t>(e.group)];
    busy =
        std::max(busy, rank) + h.seconds("all_gather", trace.groups[static_cast<std::size_t>(e.group)].ranks, e.bytes);
    end[i] = busy;
  }
  return std::max({rank, link[0], link[1]});
}

RC_GTEST_PROP(Replay, EqualsASecondSimulation, ()) {
  const auto trace = random_trace();
  const auto h = hardware(true);
  const auto estimate = estimate_step(trace, h);
  const double apart = std::abs(estimate.seconds - reference(trace, h));
  RC_ASSERT(apart <= 1e-9 * (1e-6 + estimate.seconds));
  RC_ASSERT(std::abs(estimate.seconds - estimate.compute - estimate.exposed) <= 1e-9);
  const auto blocking = estimate_step(trace, hardware(false));
  RC_ASSERT(std::abs(blocking.seconds - blocking.compute - blocking.communication) <= 1e-9);
  RC_ASSERT(blocking.seconds >= estimate.seconds - 1e-12);
}

// A collective of c seconds beside operators of t seconds is exposed for c - t.
TEST(Replay, HalfTheBandwidthExposesWhatTheOperatorsDoNotHide) {
  StepTrace trace;
  trace.names = {"all_gather"};
  trace.groups = {{"shard", {0, 1, 2, 3}}};
  trace.events = {{.kind = Kind::collective, .group = 0, .bytes = 4'000'000},
                  product(3'000'000'000),
                  {.kind = Kind::wait, .group = 0, .start = 0}};
  auto h = hardware(true);
  const double operators = 1e-6 + 3e-3;
  EXPECT_NEAR(estimate_step(trace, h).exposed, 2e-6 + 4e-3 - operators, 1e-9);
  h.levels[0].bandwidth /= 2;
  EXPECT_NEAR(estimate_step(trace, h).exposed, 2e-6 + 8e-3 - operators, 1e-9);
  EXPECT_NEAR(estimate_step(trace, h).exposed_by_axis.at("shard"), 2e-6 + 8e-3 - operators, 1e-9);
  h.levels[0].bandwidth *= 8;
  EXPECT_EQ(estimate_step(trace, h).exposed, 0);
}

// GPipe and 1F1B of p equal stages take (m + p - 1)(f + b); the idle share is (p - 1) / (m + p - 1).
RC_GTEST_PROP(Pipeline, EqualStagesHaveTheBubbleOfTheFormula, ()) {
  const int p = *rc::gen::inRange(1, 6), m = *rc::gen::inRange(p, 12);
  StepEstimate stage;
  const double f = 0.5, b = 1.25, update = 0.125, gather = 0.0625;
  for (int i = 0; i < 3; ++i) stage.marks.emplace_back("0F" + std::to_string(i), i == 0 ? f + gather : f);
  for (int i = 0; i < 3; ++i) stage.marks.emplace_back("0B" + std::to_string(i), b);
  stage.marks.emplace_back("update", update);
  for (const auto& [name, seconds] : stage.marks) stage.seconds += seconds;
  const auto name = *rc::gen::element<std::string>("gpipe", "1f1b");
  const auto schedule = pipeline::make_schedule(name, p, m);
  const auto estimate = estimate_pipeline(schedule, std::vector<StepEstimate>(static_cast<std::size_t>(p), stage), 0);
  RC_ASSERT(std::abs(estimate.seconds - (m + p - 1) * (f + b) - update - gather) < 1e-9);
  RC_ASSERT(std::abs(estimate.bubble - (p - 1.0) / (m + p - 1)) < 1e-9);
}

// Each rank has two stages, of different times: the names of the marks say which.
TEST(Pipeline, RanksOfInterleavedSchedulesHaveATimeForEachStage) {
  const int p = 2, m = 4;
  std::vector<StepEstimate> ranks(p);
  double busiest = 0;
  for (int r = 0; r < p; ++r) {
    for (const int stage : {r, r + p}) {
      for (int i = 0; i < m; ++i) {
        ranks[static_cast<std::size_t>(r)].marks.emplace_back(std::to_string(stage) + "F" + std::to_string(i),
                                                              1 + stage);
        ranks[static_cast<std::size_t>(r)].marks.emplace_back(std::to_string(stage) + "B" + std::to_string(i), 2);
      }
    }
    auto& rank = ranks[static_cast<std::size_t>(r)];
    for (const auto& [name, seconds] : rank.marks) rank.seconds += seconds;
    busiest = std::max(busiest, rank.seconds);
  }
  const auto schedule = pipeline::make_schedule("interleaved", p, m);
  const auto simulated = pipeline::simulate(
      pipeline::with_communication(schedule, {.unsharded_stages = std::nullopt, .reduce_grad = false}),
      [](const pipeline::Action& a) {
        if (!pipeline::is_compute(a.kind)) return 0.0;
        return a.kind == pipeline::Action::Kind::forward ? 1.0 + a.stage : 2.0;
      });
  const auto estimate = estimate_pipeline(schedule, ranks, 0);
  EXPECT_NEAR(estimate.seconds, simulated.makespan, 1e-9);
  EXPECT_GT(estimate.seconds, busiest);
  ranks[1].marks.clear();
  EXPECT_THROW(estimate_pipeline(schedule, ranks, 0), c10::Error);  // rank 1 has no marks
}

}  // namespace
}  // namespace estimate
