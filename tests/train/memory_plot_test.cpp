// The memory plot shows the memory of a step by kind: known bytes as counted, and no gathered units where none exist.
#include "train/plots/memory_plot.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "dtensor/launch.h"
#include "support/folder.h"
#include "train/layouts/compare.h"
#include "train/layouts/layouts.h"
#include "train/model/plan.h"
#include "train/run.h"

namespace {

using train::MemorySample;

train::Options options() {
  train::Options o;
  o.batch = 8, o.seq = 16, o.hidden = 16, o.layers = 3;
  return o;
}

std::vector<MemorySample> record(const train::Options& o, train::MeshShape shape, std::int64_t& gathered) {
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
      if (step == 1)
        memory.emplace(model.named_parameters(),
                       std::vector(units.begin(), units.begin() + std::min<std::ptrdiff_t>(
                                                                      1, static_cast<std::ptrdiff_t>(units.size()))),
                       1000);
      train::token_loss(model(place(batch.ids)).logits.front(), place(batch.targets)).backward();
      if (memory && world.rank() == 0) samples = memory->samples();
    }
    if (world.rank() == 0) gathered = units.empty() ? 0 : units[0].stats().peak_gathered_bytes;
  });
  return samples;
}

std::int64_t highest(const std::vector<MemorySample>& samples, std::int64_t MemorySample::*what) {
  std::int64_t most = 0;
  for (const auto& s : samples) most = std::max(most, s.*what);
  return most;
}

TEST(MemoryPlot, ShowsTheMemoryOfAStep) {
  auto o = options();
  std::int64_t gathered = 0;
  const auto sharded = record(o, {1, 2, 1}, gathered);
  ASSERT_GT(sharded.size(), 20U);
  EXPECT_EQ(highest(sharded, &MemorySample::gathered), gathered);
  EXPECT_EQ(sharded.front().optimizer, 1000);
  EXPECT_EQ(sharded.front().gradients, 0);
  EXPECT_GT(sharded.back().gradients, 0);
  EXPECT_GT(highest(sharded, &MemorySample::rest), 0);
  EXPECT_EQ(sharded.front().phase, dtensor::Phase::forward);
  EXPECT_EQ(sharded.back().phase, dtensor::Phase::backward);

  o.reshard = "false";
  const auto kept = record(o, {1, 2, 1}, gathered);
  EXPECT_EQ(highest(kept, &MemorySample::gathered), gathered);
  EXPECT_GT(highest(kept, &MemorySample::gathered), highest(sharded, &MemorySample::gathered));

  const auto replicas = record(options(), {2, 1, 1}, gathered);
  EXPECT_EQ(highest(replicas, &MemorySample::gathered), 0);
  EXPECT_GT(replicas.front().parameters, sharded.front().parameters * 3 / 2);
}

// The plots of docs/benchmarks.md have one scale; every split reduces its kind of memory.
TEST(MemoryPlot, LayoutsAreDrawnSideBySide) {
  auto o = options();
  o.steps = 2;
  const auto corpus = train::Corpus::read({}, o.seq);
  const auto runs = train::run_layouts(o, corpus, train::usual_layouts());
  ASSERT_EQ(runs.size(), 5U);
  const auto one_device = train::losses(train::train_on_one_device(o, corpus));
  for (const auto& run : runs) {
    ASSERT_GT(run.memory.size(), 20U) << run.name;
    for (const double d : train::relative_difference(run.losses, one_device)) EXPECT_LE(d, 1e-5) << run.name;
    EXPECT_EQ(run.memory.front().optimizer, 2 * run.memory.front().parameters) << run.name;
  }
  const auto parameters = [&](std::size_t i) { return static_cast<double>(runs[i].memory.front().parameters); };
  EXPECT_NEAR(parameters(1) / parameters(0), 0.25, 0.01);  // FSDP over 4 ranks.
  EXPECT_NEAR(parameters(2) / parameters(0), 0.5, 0.01);   // HSDP over 2 ranks.
  EXPECT_NEAR(parameters(4) / parameters(0), 0.25, 0.02);  // 2x2x2: two splits.
  EXPECT_EQ(highest(runs[0].memory, &MemorySample::gathered), 0);
  EXPECT_GT(highest(runs[1].memory, &MemorySample::gathered), 0);

  const dtensor::test::Folder folder;
  train::write_figures(folder.str(), o, one_device, runs);
  for (const char* name : {"layouts_loss.svg", "layouts_memory.svg"}) {
    std::ifstream in(folder / name);
    const std::string svg((std::istreambuf_iterator<char>(in)), {});
    for (const auto& run : runs) EXPECT_NE(svg.find(run.name), std::string::npos) << name << " " << run.name;
  }
}

std::string svg_of(const std::string& title, const std::vector<MemorySample>& samples) {
  return train::memory_svg({{title, samples}});
}

// A panel with a quarter of the memory has a quarter of the height.
TEST(MemoryPlot, PanelsShareOneScale) {
  const std::vector<MemorySample> low{{.seconds = 1, .parameters = 1000}}, high{{.seconds = 1, .parameters = 4000}};
  const auto svg = train::memory_svg({{"low", low}, {"high", high}});
  std::vector<double> heights;
  for (auto at = svg.find("<polygon"); at != std::string::npos; at = svg.find("<polygon", at + 1)) {
    double upper = 0, lower = 0;
    ASSERT_EQ(std::sscanf(svg.c_str() + svg.find("points", at), "points=\"%*f,%lf %*f,%lf", &upper, &lower), 2);
    if (lower > upper) heights.push_back(lower - upper);
  }
  ASSERT_EQ(heights.size(), 2U);
  EXPECT_NEAR(heights[0] * 4, heights[1], 0.5);
}

TEST(MemoryPlot, BeginsBeforeTheFirstOperator) {
  const train::MemoryRecord record({}, {}, 7);
  ASSERT_EQ(record.samples().size(), 1U);
  EXPECT_EQ(record.samples().front().optimizer, 7);
}

TEST(MemoryPlot, DrawsEachKindAndItsBytes) {
  const auto svg = svg_of("a title", {{.seconds = 0.5, .parameters = 2000000}, {.seconds = 1, .rest = 1000}});
  for (const char* text : {"a title, peak 2.0 MB", "parameters: 2.0 MB", "gathered units: 0", "</svg>"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text << svg;
  }
  EXPECT_NE(svg_of("none", {}).find("</svg>"), std::string::npos);
}

TEST(MemoryPlot, HasAxesUnitsAndPhases) {
  const auto svg = svg_of("t", {{.seconds = 0.001, .parameters = 3000000},
                                {.seconds = 0.002, .phase = dtensor::Phase::backward, .parameters = 3000000},
                                {.seconds = 0.003, .phase = dtensor::Phase::backward, .parameters = 3000000},
                                {.seconds = 0.004, .parameters = 3000000}});
  for (const char* text :
       {">memory, MB<", ">time of one step, ms<", ">forward<", ">backward<", ">optimizer<", ">3<", ">4<"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text << svg;
  }
}

}  // namespace
