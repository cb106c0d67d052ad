// A dry run of one rank of a pipeline also runs the other ranks of that pipeline, and no others.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "dtensor/dry_run.h"
#include "dtensor/mesh.h"
#include "dtensor/pipeline.h"
#include "dtensor/tensor.h"

namespace dry {
namespace {

using namespace dtensor;
using pipeline::Tensors;

constexpr std::int64_t kRows = 8, kWidth = 256;  // larger than small tensors, which are real

// The number of ranks of a step, and what each of them receives.
struct Ran {
  std::mutex mutex;
  std::map<int, at::DimVector> sizes;
};

at::Tensor parameter(const DeviceMesh& mesh) {
  return distribute_tensor(at::randn({kWidth, kWidth}), mesh, {Replicate()}).requires_grad_();
}

// Each of `stages` stages has one row more than the one before it. The first and the last share a parameter.
void step(const Communicator& world, std::int64_t stages, Ran& ran, int failing = -1) {
  const auto mesh = init_device_mesh(world, at::kCPU, {stages, world.size() / stages}, {"pp", "dp"});
  pipeline::Pipeline pipe(mesh, pipeline::make_schedule("1f1b", static_cast<int>(stages), 2),
                          [](const Tensors& out, const Tensors&) { return out[0].square().mean(); });
  const int stage = pipe.stages()[0];
  const auto weight = parameter(pipe.stage_mesh());
  pipe.set_stage(stage,
                 [&](const Tensors& in) -> Tensors {
                   TORCH_CHECK(stage != failing, "this stage fails");
                   const std::lock_guard lock(ran.mutex);
                   ran.sizes[world.rank()] = at::DimVector(in[0].sizes());
                   return {at::cat({in[0].mm(weight), in[0].narrow(0, 0, 1)})};
                 },
                 {weight});
  const bool has_copy = stage == 0 || stage == pipe.last_stage();
  pipe.tie("weight", has_copy ? std::vector{weight} : std::vector<at::Tensor>());
  const auto part = [&] { return distribute_tensor(at::randn({kRows, kWidth}), pipe.stage_mesh(), {Replicate()}); };
  const std::vector<Tensors> parts = {{part()}, {part()}};
  pipe.step(stage == 0 ? parts : std::vector<Tensors>(), stage == pipe.last_stage() ? parts : std::vector<Tensors>());
  pipe.clip_grad_norm_(1);
}

TEST(DryRunPipeline, RunsTheRanksOfItsPipeline) {
  constexpr std::int64_t kStages = 4;
  for (const int rank : {0, 7, 4095}) {
    Ran ran;
    const auto report = dry_run({.ranks = 4096, .rank = rank}, [&](const Communicator& w) { step(w, kStages, ran); });
    EXPECT_EQ(report.rank, rank);
    ASSERT_EQ(report.peers.size(), kStages - 1U);
    ASSERT_EQ(ran.sizes.size(), kStages + 0U);
    std::int64_t stage = 0;
    for (const auto& [r, sizes] : ran.sizes) {  // the size depends on all stages before this one
      EXPECT_EQ(r, rank % 1024 + 1024 * stage);
      EXPECT_EQ(sizes[0], kRows + stage++);
    }
    EXPECT_NE(report.json().find("\"peers\""), std::string::npos);
  }
}

TEST(DryRunPipeline, CountsMessagesAndTiedParametersOfEachRank) {
  Ran ran;
  const auto report = dry_run({.ranks = 6}, [&](const Communicator& w) { step(w, 3, ran); });
  constexpr std::int64_t kHeader = 128 * 8, kElement = 4;
  const auto bytes = [&](std::int64_t rows) { return 2 * (kHeader + rows * kWidth * kElement); };  // two microbatches
  EXPECT_EQ(report.collectives.at({"recv", "pp"}).bytes, bytes(kRows + 1));                        // gradients
  EXPECT_EQ(report.peers[0].collectives.at({"recv", "pp"}).bytes, bytes(kRows + 1) + bytes(kRows + 2));
  EXPECT_EQ(report.peers[1].collectives.at({"recv", "pp"}).bytes, bytes(kRows + 2));
  EXPECT_EQ(report.collectives.count({"all_reduce", "tied"}), 1U);
  EXPECT_EQ(report.peers[0].collectives.count({"all_reduce", "tied"}), 0U);
  EXPECT_EQ(report.peers[1].collectives.count({"all_reduce", "tied"}), 1U);
}

TEST(DryRunPipeline, LimitIsForAllStages) {
  DryRunReport report;
  report.peak.bytes = 10;
  report.peers.emplace_back().peak.bytes = 30;
  EXPECT_FALSE(report.fits(20));
  EXPECT_TRUE(report.fits(30));
  EXPECT_NE(report.table(20).find("does NOT fit: 10 B too much"), std::string::npos);
}

TEST(DryRunPipeline, ErrorOfAnotherStageNamesItsRank) {
  Ran ran;
  try {
    dry_run({.ranks = 6, .rank = 1}, [&](const Communicator& w) { step(w, 3, ran, /*failing=*/1); });
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_NE(text.find("this stage fails"), std::string::npos) << text;
    EXPECT_NE(text.find("on rank 3"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace dry
