// The trace of a dry run has the operators and collectives of the step, and shows which of them overlap.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dtensor/dry_run.h"
#include "dtensor/fully_shard.h"
#include "dtensor/mesh.h"
#include "dtensor/nn.h"
#include "dtensor/tensor.h"

namespace estimate {
namespace {

using namespace dtensor;
using Kind = StepTrace::Kind;

constexpr std::int64_t kSize = 256, kLayers = 3;

// Two steps of linear layers, each of which is a unit of FSDP. The second step is reported.
void train(const Communicator& world) {
  const auto mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"shard"});
  struct Model final : nn::Module {
    Model() {
      for (int i = 0; i < kLayers; ++i) {
        layers.push_back(std::make_unique<nn::Linear>(kSize, kSize, /*bias=*/false, at::kMeta));
        register_module(std::to_string(i), *layers.back());
      }
    }
    std::vector<std::unique_ptr<nn::Linear>> layers;
  } model;
  for (const auto& layer : model.layers) fully_shard(*layer, mesh);
  fully_shard(model, mesh);
  model.reset();
  for (int step = 0; step < 2; ++step) {
    if (step == 1) StepRecorder::begin_step();
    const auto x = distribute_tensor(at::randn({8 * world.size(), kSize}), mesh, {Shard(0)});
    StepRecorder::mark("forward");
    at::Tensor y = x;
    for (const auto& layer : model.layers) y = layer->forward(y);
    StepRecorder::mark("backward");
    y.sum().backward();
  }
}

DryRunReport run(bool asynchronous) {
  return dry_run({.ranks = 4, .trace = true, .asynchronous = asynchronous}, train);
}

// The largest number of operators between the start of a collective and its wait.
std::int64_t largest_overlap(const StepTrace& trace) {
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    if (trace.events[i].kind != Kind::wait) continue;
    const auto first = trace.events.begin() + trace.events[i].start;
    const auto last = trace.events.begin() + static_cast<std::ptrdiff_t>(i);
    EXPECT_EQ(first->kind, Kind::collective);
    EXPECT_EQ(first->name, last->name);
    EXPECT_EQ(first->group, last->group);
    largest =
        std::max(largest, std::int64_t{std::count_if(first, last, [](auto& e) { return e.kind == Kind::product; })});
  }
  return largest;
}

TEST(Trace, HasTheCountsOfTheReport) {
  const auto report = run(true);
  std::map<std::pair<std::string, std::string>, std::pair<std::int64_t, std::int64_t>> collectives;
  std::int64_t flops = 0, bytes = 0, calls = 0;
  for (const auto& event : report.trace.events) {
    const auto& name = report.trace.names.at(static_cast<std::size_t>(event.name));
    if (event.kind == Kind::collective) {
      auto& sum = collectives[{name, report.trace.groups.at(static_cast<std::size_t>(event.group)).axis}];
      ++sum.first, sum.second += event.bytes;
    } else if (event.kind != Kind::wait && event.kind != Kind::mark) {
      flops += event.flops, bytes += event.bytes, ++calls;
    }
  }
  ASSERT_FALSE(report.collectives.empty());
  for (const auto& [key, count] : report.collectives) {
    EXPECT_EQ(collectives[key], std::pair(count.calls, count.bytes)) << key.first;
  }
  EXPECT_EQ(collectives.size(), report.collectives.size());
  for (const auto& [name, count] : report.operators) flops -= count.flops, bytes -= count.bytes, calls -= count.calls;
  EXPECT_EQ(std::tuple(flops, bytes, calls), std::tuple(0, 0, 0));
  // Forward, gradients of inputs (not of the first layer) and of weights: 2 FLOPs for each product and sum.
  std::int64_t products = 0;
  for (const auto& event : report.trace.events) products += event.kind == Kind::product ? event.flops : 0;
  EXPECT_EQ(products, 2 * 8 * kSize * kSize * (3 * kLayers - 1));
}

TEST(Trace, CollectivesOverlapWhereTheyRunInTheBackground) {
  EXPECT_GE(largest_overlap(run(true).trace), 1);
  EXPECT_EQ(largest_overlap(run(false).trace), 0);
}

TEST(Trace, MarksAreInOrderAndGroupsHaveTheirRanks) {
  const auto trace = run(true).trace;
  std::vector<std::string> marks;
  for (const auto& event : trace.events) {
    if (event.kind == Kind::mark) marks.push_back(trace.names[static_cast<std::size_t>(event.name)]);
  }
  EXPECT_EQ(marks, (std::vector<std::string>{"forward", "backward"}));
  for (const auto& group : trace.groups) EXPECT_EQ(group.ranks, (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_TRUE(dry_run({.ranks = 4}, train).trace.events.empty());
}

}  // namespace
}  // namespace estimate
