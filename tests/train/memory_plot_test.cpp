// The picture of memory shows what the step held, by kind: known bytes as predicted, and nothing gathered where nothing
// is.
#include "train/memory_plot.h"

#include <gtest/gtest.h>

#include "dtensor/launch.h"
#include "train/load.h"
#include "train/plan.h"
#include "train/run.h"

namespace {

using train::MemorySample;

train::Options options() {
  train::Options o;
  o.batch = 8, o.seq = 16, o.hidden = 16, o.layers = 3;
  return o;
}

std::vector<MemorySample> record(const train::Options& o, train::MeshShape shape, std::int64_t& predicted) {
  std::vector<MemorySample> samples;
  dtensor::run_local(static_cast<int>(shape.size()), [&](const dtensor::Communicator& world) {
    const auto mesh = train::make_mesh(world, shape);
    train::Gpt model(train::gpt_config(o));
    const auto units = train::distribute(model, mesh, o);
    const auto corpus = train::Corpus::read({}, o.seq);
    for (int step = 0; step < 2; ++step) {
      const auto batch = corpus.batch(0, step, {o.batch, o.seq});
      const auto place = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, train::batch_placements()); };
      for (const auto& [name, p] : model.named_parameters()) p->mutable_grad().reset();
      std::optional<train::MemoryRecord> memory;
      if (step == 1) memory.emplace(model.named_parameters(), units, 1000);
      train::token_loss(model.forward(place(batch.ids)), place(batch.targets)).backward();
      if (memory && world.rank() == 0) samples = memory->samples();
    }
    if (world.rank() == 0) predicted = units.empty() ? 0 : dtensor::predict_memory(units).gathered;
  });
  return samples;
}

std::int64_t highest(const std::vector<MemorySample>& samples, std::int64_t MemorySample::*what) {
  std::int64_t most = 0;
  for (const auto& s : samples) most = std::max(most, s.*what);
  return most;
}

TEST(MemoryPlot, ShowsWhatAStepHolds) {
  auto o = options();
  std::int64_t predicted = 0;
  const auto sharded = record(o, {1, 2, 1}, predicted);
  ASSERT_GT(sharded.size(), 20U);
  EXPECT_EQ(highest(sharded, &MemorySample::gathered), predicted);
  EXPECT_EQ(sharded.front().optimizer, 1000);
  EXPECT_EQ(sharded.front().gradients, 0);
  EXPECT_GT(sharded.back().gradients, 0);
  EXPECT_GT(highest(sharded, &MemorySample::rest), 0);
  EXPECT_EQ(sharded.front().phase, dtensor::Phase::forward);
  EXPECT_EQ(sharded.back().phase, dtensor::Phase::backward);

  o.reshard = "false";
  const auto kept = record(o, {1, 2, 1}, predicted);
  EXPECT_EQ(highest(kept, &MemorySample::gathered), predicted);
  EXPECT_GT(highest(kept, &MemorySample::gathered), highest(sharded, &MemorySample::gathered));

  const auto replicas = record(options(), {2, 1, 1}, predicted);
  EXPECT_EQ(highest(replicas, &MemorySample::gathered), 0);
  EXPECT_GT(replicas.front().parameters, sharded.front().parameters * 3 / 2);
}

TEST(MemoryPlot, DrawsEachKindAndItsBytes) {
  const auto svg =
      train::memory_svg("a title", {{.seconds = 0.5, .parameters = 2000000}, {.seconds = 1, .rest = 1000}});
  for (const char* text : {"a title", "parameters: 2.0 MB", "gathered units: 0", "</svg>"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text << svg;
  }
  EXPECT_NE(train::memory_svg("none", {}).find("</svg>"), std::string::npos);
}

TEST(MemoryPlot, HasAxesUnitsAndPhases) {
  const auto svg = train::memory_svg("t", {{.seconds = 0.001, .parameters = 3000000},
                                           {.seconds = 0.002, .phase = dtensor::Phase::backward, .parameters = 3000000},
                                           {.seconds = 0.003, .phase = dtensor::Phase::backward, .parameters = 3000000},
                                           {.seconds = 0.004, .parameters = 3000000}});
  for (const char* text : {">MB<", ">ms of one step<", ">forward<", ">backward<", ">optimizer<", ">3<", ">4<"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text << svg;
  }
}

}  // namespace
