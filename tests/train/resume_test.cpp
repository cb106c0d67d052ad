// Pitfall G8 for the full program: training stops on one mesh and resumes on another as if it had not stopped.
#include <gtest/gtest.h>

#include "resume.h"

namespace {

using train::MeshShape;
using train::Options;
using train::StepRecord;

std::vector<StepRecord> run(const MeshShape& shape, Options options, const train::Corpus& corpus = resume::corpus()) {
  options.mesh = shape;
  std::vector<StepRecord> records;
  dtensor::run_local(static_cast<int>(shape.size()), [&](dtensor::Communicator world) {
    const auto mine = train::train_on_mesh(world, options, corpus, {});
    if (world.rank() == 0) records = mine;
  });
  return records;
}

class Resume : public testing::TestWithParam<const char*> {
 protected:
  ~Resume() override { std::filesystem::remove_all(folder_); }
  const std::string folder_ = resume::folder("threads_" + std::to_string(::getpid()));
};

TEST_P(Resume, CurveIsTheSameOnAnyMesh) {
  Options options = resume::options(GetParam());
  const MeshShape from{1, 2, 2};
  const auto full = run(from, options);
  Options first = options, rest = options;
  first.steps = 4;
  first.save = rest.load = folder_;
  run(from, first);
  EXPECT_EQ(resume::largest_difference(run(from, rest), full), 0);
  for (const MeshShape& to : {MeshShape{2, 1, 1}, MeshShape{1, 3, 1}, MeshShape{1, 1, 2}, MeshShape{2, 2, 2}}) {
    rest.parallel = to.tp > 1 ? "plain" : "fsdp";
    const auto records = run(to, rest);
    EXPECT_EQ(records.size(), 6u);
    EXPECT_EQ(records.front().step, 4);
    EXPECT_LE(resume::largest_difference(records, full), 1e-9) << to.str();
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Resume, testing::Values("adamw", "sgd", "shampoo", "muon"));

// Saves in the background every three steps, the last time at step 6; then the run ends.
TEST_F(Resume, SavesDuringTraining) {
  Options options = resume::options();
  const auto full = run({1, 2, 1}, options);
  Options first = options, rest = options;
  first.save = rest.load = folder_;
  first.save_every = 3;
  first.steps = 7;
  EXPECT_EQ(resume::largest_difference(run({1, 2, 1}, first), full), 0);
  EXPECT_EQ(resume::largest_difference(run({1, 2, 1}, rest), full), 0);
  EXPECT_EQ(run({1, 2, 1}, rest).front().step, 7);
}

// The checkpoint after step 3 of 6 was written on shard=2 by a version whose model had other names. The losses are
// those of its uninterrupted run.
TEST(FormerNames, RunIsResumed) {
  Options options;
  options.hidden = 8, options.layers = 2, options.batch = 4, options.seq = 8, options.dropout = 0.1;
  options.optimizer = "muon", options.lr = 0.01, options.warmup = 2, options.steps = 6;
  options.data = {dtensor::test::data_path("oracles/transformer.json")};
  options.load = dtensor::test::data_path("checkpoints/former_names");
  const auto corpus = train::Corpus::read(options.data, options.seq);
  for (const MeshShape& shape : {MeshShape{.shard = 2}, MeshShape{.tp = 2}}) {
    const auto records = run(shape, options, corpus);
    ASSERT_EQ(records.size(), 3U);
    const std::array losses{5.582755088806152, 5.471440315246582, 5.5546464920043945};
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(records[i].loss, losses[i], 1e-5) << shape.str() << " step " << i;
  }
}

TEST_F(Resume, MistakesAreErrors) {
  Options options = resume::options();
  options.steps = 1;
  options.save = folder_;
  run({1, 1, 1}, options);
  options.save = "";
  options.load = folder_;
  EXPECT_ANY_THROW(run({1, 2, 1}, options));  // No steps left.
  options.steps = 2;
  EXPECT_EQ(run({1, 2, 1}, options).size(), 1u);
  options.seed = 1;
  EXPECT_ANY_THROW(run({1, 2, 1}, options));  // Different batches.
  options.seed = 0;
  options.hidden = 32;
  EXPECT_ANY_THROW(run({1, 2, 1}, options));  // Different model.
  options.hidden = 0;
  options.optimizer = "sgd";
  EXPECT_ANY_THROW(run({1, 2, 1}, options));
}

}  // namespace
