// The program in stages: every schedule has one device's curve, whatever a stage does inside, and a run goes on with
// any other number of stages.
#include <gtest/gtest.h>

#include <fstream>

#include "dtensor/pipeline_schedule.h"
#include "resume.h"
#include "train/compare.h"

namespace {

using train::MeshShape;
using train::Options;
using train::StepRecord;

Options options() {
  Options o = resume::options();
  o.layers = 4;
  o.batch = 7;  // not divisible
  o.microbatches = 3;
  o.grad_accum = 3;
  o.steps = 4;
  return o;
}

std::vector<StepRecord> run(const MeshShape& shape, Options o) {
  o.mesh = shape;
  std::vector<StepRecord> records;
  dtensor::run_local(static_cast<int>(shape.size()), [&](dtensor::Communicator world) {
    const auto mine = train::train_on_mesh(world, o, resume::corpus(), {});
    if (world.rank() == 0) records = mine;
  });
  return records;
}

void expect_one_device(const MeshShape& shape, const Options& o) {
  const auto compared = train::compare_with_one_device(o, resume::corpus(), run(shape, o));
  EXPECT_LE(compared.largest, 1e-9) << shape.str() << " " << o.schedule;
}

TEST(Stages, EveryScheduleHasTheCurveOfOneDevice) {
  for (const std::string& schedule : dtensor::pipeline::schedule_names()) {
    Options o = options();
    o.schedule = schedule;
    expect_one_device({.pp = 2}, o);
    expect_one_device({.shard = 2, .pp = 2}, o);
  }
}

TEST(Stages, WithAllThatGoesOnInside) {
  Options o = options();
  expect_one_device({.shard = 2, .tp = 2, .pp = 2}, o);
  expect_one_device({.replicate = 2, .pp = 3}, o);
  o.checkpoint_activations = true;
  o.schedule = "zb-h1";
  expect_one_device({.tp = 2, .pp = 2}, o);
  o = options();
  o.dropout = 0.1;
  o.schedule = "zbv";
  expect_one_device({.shard = 2, .pp = 2}, o);
  o = options();
  o.loss_parallel = o.sequence_parallel = true;
  expect_one_device({.tp = 2, .pp = 2}, o);
}

// The parity run: FSDP 2 (EP 2), TP 2, PP 2.
TEST(Stages, ExpertsToo) {
  Options o = options();
  o.experts.emplace().ep = 2;
  o.experts->show_load = false;
  for (const char* balance : {"none", "bias", "aux"}) {
    o.experts->balance = balance;
    expect_one_device({.shard = 2, .tp = 2, .pp = 2}, o);
  }
}

TEST(Stages, AScheduleFromAFile) {
  const auto path = resume::folder("schedule_" + std::to_string(::getpid()) + ".txt");
  std::ofstream(path) << dtensor::pipeline::make_schedule("1f1b", 2, 3).str();
  Options o = options();
  o.schedule = path;
  expect_one_device({.pp = 2}, o);
  std::filesystem::remove(path);
}

// pytorch/torchtitan#4312: norms that are summed in another order let curves part.
TEST(Stages, ClippedNormsHaveTheSameBitsForAnyNumberOfStages) {
  Options o = options();
  o.dtype = train::Dtype::float32;
  o.clip = 0.1;
  const auto one = run({.shard = 2}, o);
  for (const std::int64_t pp : {2, 4}) {
    const auto several = run({.shard = 2, .pp = pp}, o);
    for (std::size_t step = 0; step < one.size(); ++step) {
      EXPECT_EQ(several[step].grad_norm, one[step].grad_norm) << pp << " stages, step " << step;
    }
  }
}

class StagesResume : public testing::TestWithParam<const char*> {};

TEST_P(StagesResume, AnyNumberOfStagesGoesOn) {
  const auto folder = resume::folder("stages_" + std::to_string(::getpid()));
  Options o = options();
  o.optimizer = GetParam();
  o.steps = 8;
  const auto whole = run({.shard = 2}, o);
  const std::vector<MeshShape> shapes{{.shard = 2}, {.shard = 2, .pp = 2}, {.pp = 4}};
  for (const MeshShape& from : shapes) {
    Options first = o, rest = o;
    first.steps = 4;
    first.save = rest.load = folder;
    run(from, first);
    for (const MeshShape& to : shapes) {
      EXPECT_LE(resume::largest_difference(run(to, rest), whole), 1e-9) << from.str() << " to " << to.str();
    }
    std::filesystem::remove_all(folder);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, StagesResume, testing::Values("adamw", "muon"));

}  // namespace
