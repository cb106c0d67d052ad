// A user-defined schedule may have a rank without a stage. The rank takes part in collectives and stores no parameters,
// and the curve is that of one device.
#include <gtest/gtest.h>

#include <fstream>

#include "resume.h"
#include "train/layouts/compare.h"
#include "train/layouts/dry_run.h"

namespace {

using train::MeshShape;
using train::Options;
using train::StepRecord;

class IdleRank : public testing::TestWithParam<const char*> {
 protected:
  IdleRank() { std::ofstream(path_) << GetParam(); }
  ~IdleRank() override { std::filesystem::remove_all(path_), std::filesystem::remove_all(saved_); }

  Options options() const {
    Options o = resume::options();
    o.hidden = 16, o.layers = 2, o.steps = 3, o.microbatches = 2, o.schedule = path_;
    return o;
  }
  // Records of every rank.
  static std::vector<std::vector<StepRecord>> run(const MeshShape& shape, Options o,
                                                  train::MemoryUse* memory = nullptr) {
    o.mesh = shape;
    std::vector<std::vector<StepRecord>> records(static_cast<std::size_t>(shape.size()));
    dtensor::run_local(static_cast<int>(shape.size()), [&](dtensor::Communicator world) {
      train::MemoryUse mine;
      mine.sampled = memory != nullptr;
      auto own = train::train_on_mesh(world, o, resume::corpus(), {}, memory != nullptr ? &mine : nullptr);
      records[static_cast<std::size_t>(world.rank())] = std::move(own);
      if (memory != nullptr && world.rank() == 0) *memory = mine;
    });
    return records;
  }

  const std::string path_ = resume::folder("idle_" + std::to_string(::getpid()) + ".txt");
  const std::string saved_ = resume::folder("idle_" + std::to_string(::getpid()));
};

TEST_P(IdleRank, MatchesSingleDevice) {
  for (const MeshShape& shape : {MeshShape{.pp = 2}, MeshShape{.shard = 2, .pp = 2}}) {
    for (const char* optimizer : {"adamw", "muon", "shampoo"}) {
      Options o = options();
      o.optimizer = optimizer, o.shampoo = {.frequency = 1, .start = 1};
      o.mesh = shape;
      const auto records = run(shape, o);
      EXPECT_LE(train::compare_with_one_device(o, resume::corpus(), records[0]).largest, 1e-9) << optimizer;
      for (const auto& of_rank : records) {
        EXPECT_EQ(resume::largest_difference(of_rank, records[0]), 0) << optimizer;  // Also of the gradient norm.
        EXPECT_GT(of_rank[0].grad_norm, 0);
      }
    }
  }
}

TEST_P(IdleRank, HasNoParameters) {
  train::MemoryUse memory;
  run({.shard = 2, .pp = 2}, options(), &memory);
  const auto ranks = memory.ranks();
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(std::count_if(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.total() == 0; }), 1);
  Options o = options();
  o.mesh = {.shard = 2, .pp = 2};
  EXPECT_EQ(train::predict_memory(o, resume::corpus(), 4), ranks);
}

TEST_P(IdleRank, ResumesWithAnotherSchedule) {
  Options first = options(), rest = options();
  first.steps = 2, first.save = saved_, rest.load = saved_;
  const auto full = run({.pp = 2}, options());
  run({.pp = 2}, first);
  rest.schedule = "1f1b";
  EXPECT_LE(resume::largest_difference(run({.pp = 2}, rest)[0], full[0]), 1e-9);
}

TEST_P(IdleRank, BalancesExperts) {
  Options o = options();
  o.experts.emplace().ep = 1;
  o.experts->balance = "bias";
  o.mesh = MeshShape{.pp = 2};
  const auto records = run({.pp = 2}, o);
  EXPECT_LE(train::compare_with_one_device(o, resume::corpus(), records[0]).largest, 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Schedules, IdleRank,
                         testing::Values("0F0 0F1 0B0 0B1\n-\n", "-\n0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1\n",
                                         "0UNSHARD 0F0 0F1 0B0 0B1 0RESHARD 0REDUCE_GRAD\n-\n"));

}  // namespace
