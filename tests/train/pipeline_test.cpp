// The program in stages: every schedule has the curve of one device, with any parallelism within stages, and a run
// resumes with any number of stages.
#include <gtest/gtest.h>

#include <fstream>

#include "dtensor/events.h"
#include "dtensor/pipeline_schedule.h"
#include "resume.h"
#include "train/layouts/compare.h"
#include "train/layouts/dry_run.h"
#include "train/model/stages.h"

namespace {

using train::MeshShape;
using train::Options;
using train::StepRecord;

Options options() {
  Options o = resume::options();
  o.layers = 4;
  o.batch = 7;  // Not divisible.
  o.microbatches = 3;
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

Options narrow() {
  Options o = options();
  o.hidden = 16, o.steps = 2;
  return o;
}

void expect_one_device(const MeshShape& shape, Options o) {
  o.mesh = shape;
  const auto compared = train::compare_with_one_device(o, resume::corpus(), run(shape, o));
  EXPECT_LE(compared.largest, 1e-9) << shape.str() << " " << o.schedule;
}

TEST(Stages, EveryScheduleMatchesSingleDevice) {
  for (const std::string& schedule : dtensor::pipeline::schedule_names()) {
    Options o = options();
    o.schedule = schedule;
    expect_one_device({.pp = 2}, o);
    expect_one_device({.shard = 2, .pp = 2}, o);
  }
}

TEST(Stages, ParallelismWithinStagesMatchesSingleDevice) {
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

// The layout of the parity run: FSDP 2 (EP 2), TP 2, PP 2.
TEST(Stages, ExpertsInStagesMatchSingleDevice) {
  Options o = options();
  o.experts.emplace().ep = 2;
  o.experts->show_load = false;
  for (const char* balance : {"none", "bias", "aux"}) {
    o.experts->balance = balance;
    expect_one_device({.shard = 2, .tp = 2, .pp = 2}, o);
  }
}

// Several pipeline steps for one optimizer step, with 4 and 3 sequences.
TEST(Stages, GradientAccumulationMatchesSingleDevice) {
  Options o = narrow();
  o.grad_accum = 2;
  for (const char* schedule : {"1f1b", "zbv"}) {
    o.schedule = schedule;
    expect_one_device({.shard = 2, .pp = 2}, o);
  }
  o.dropout = 0.1;  // Random numbers depend on the index in the full batch.
  o.checkpoint_activations = true;
  expect_one_device({.tp = 2, .pp = 2}, o);
  o.experts.emplace().ep = 2;
  expect_one_device({.shard = 2, .pp = 2}, o);
}

// Gradients are reduced once in an optimizer step, for any number of accumulation steps; activations are sent with each
// microbatch. The first step is skipped, since it learns which gradients to expect.
TEST(Stages, AccumulatedGradientsAreReducedOnce) {
  Options o = narrow();
  o.batch = 8, o.microbatches = 2, o.mesh = MeshShape{.shard = 2, .pp = 2};
  const auto of_last_step = [&](std::int64_t pieces) {
    o.grad_accum = pieces;
    std::pair<std::int64_t, std::int64_t> reductions_and_messages;
    dtensor::run_local(4, [&](dtensor::Communicator world) {
      std::pair<std::int64_t, std::int64_t> mine;
      const dtensor::EventListener listener(
          [&](const dtensor::Event& e) {
            mine.first += e.name == "reduce_scatter";
            mine.second += e.axis == "pp" && e.bytes > 0;
          },
          {dtensor::Event::Kind::collective});
      train::train_on_mesh(world, o, resume::corpus(), [&](const StepRecord&) {
        if (world.rank() == 0) reductions_and_messages = mine;
        mine = {};
      });
    });
    return reductions_and_messages;
  };
  const auto [once, few] = of_last_step(1);
  const auto [twice, many] = of_last_step(2);
  EXPECT_EQ(once, 4);  // Of rank 0's stage: three blocks and the embedding.
  EXPECT_EQ(twice, once);
  EXPECT_GT(many, few);
}

// The output of --memory on each pipeline rank.
TEST(Stages, MemoryIsPredictedOnEachRank) {
  Options o = narrow();
  const auto memory_of = [](Options of, const MeshShape& shape) {
    of.mesh = shape;
    train::MemoryUse memory;
    dtensor::run_local(static_cast<int>(shape.size()), [&](dtensor::Communicator world) {
      train::MemoryUse mine;
      train::train_on_mesh(world, of, resume::corpus(), {}, &mine);
      if (world.rank() == 0) memory = mine;
    });
    return memory;
  };
  for (const bool experts : {false, true}) {
    if (experts) o.experts.emplace().ep = 1;
    const auto full = memory_of(o, {.shard = 2});
    for (const char* schedule : {"gpipe", "1f1b", "zbv"}) {
      for (const char* reshard : {"true", "false"}) {
        SCOPED_TRACE(c10::str(schedule, ", reshard ", reshard, experts ? ", experts" : ""));
        o.schedule = schedule, o.reshard = reshard;
        const auto memory = memory_of(o, {.shard = 2, .pp = 2});
        std::int64_t parameters = 0, gathered = 0;
        const auto ranks = memory.ranks();
        ASSERT_EQ(ranks.size(), 2U);
        o.mesh = {.shard = 2, .pp = 2};
        EXPECT_EQ(train::predict_memory(o, resume::corpus(), 4), ranks);
        for (const auto& rank : ranks) parameters += rank.parameters, gathered += rank.gathered;
        EXPECT_EQ(ranks[1].rank, 2);
        EXPECT_EQ(parameters, full.measured.parameters);
        EXPECT_LE(gathered, 2 * parameters + 4096);
      }
    }
  }
}

// Counts of every layer on any rank, over all microbatches, equal those of one pass over the full batch.
TEST(Stages, ExpertLoadCountsTheFullBatch) {
  Options o = narrow();
  auto& experts = o.experts.emplace();
  experts.ep = 2, experts.balance = "none", experts.dispatcher = "capacity", experts.capacity = 8;
  const auto full = run({.shard = 2}, o);
  for (const auto& shape : {MeshShape{.shard = 2, .pp = 2}, MeshShape{.tp = 2, .pp = 2}}) {
    const auto staged = run(shape, o);
    for (std::size_t step = 0; step < full.size(); ++step) {
      ASSERT_EQ(staged[step].imbalance.size(), 4U);
      for (std::size_t layer = 0; layer < 4; ++layer) {
        EXPECT_DOUBLE_EQ(staged[step].imbalance[layer], full[step].imbalance[layer]) << shape.str() << " " << layer;
      }
      EXPECT_EQ(staged[step].dropped, 0);
    }
  }
}

TEST(Stages, ScheduleFromAFile) {
  const auto path = resume::folder("schedule_" + std::to_string(::getpid()) + ".txt");
  std::ofstream(path) << dtensor::pipeline::make_schedule("1f1b", 2, 3).str();
  Options o = options();
  o.schedule = path;
  expect_one_device({.pp = 2}, o);
  o.chunks = 1;
  EXPECT_EQ(train::schedule_of(o, 2).stages(), 2);
  o.chunks = 2;  // Differs from the file's.
  EXPECT_THROW(train::schedule_of(o, 2), train::UsageError);
  std::filesystem::remove(path);
}

// pytorch/torchtitan#4312: norms that are summed in different orders make curves diverge.
TEST(Stages, ClippedNormsAreBitEqualForAnyNumberOfStages) {
  Options o = options();
  o.dtype = train::Dtype::float32;
  o.clip = 0.1;
  Options in_pieces = o;  // The same microbatches, one after the other.
  in_pieces.grad_accum = o.microbatches;
  in_pieces.accumulate_sharded = false;  // Stages reduce their gradients once.
  const auto one = run({.shard = 2}, in_pieces);
  for (const std::int64_t pp : {2, 4}) {
    const auto several = run({.shard = 2, .pp = pp}, o);
    for (std::size_t step = 0; step < one.size(); ++step) {
      EXPECT_EQ(several[step].grad_norm, one[step].grad_norm) << pp << " stages, step " << step;
    }
  }
}

class StagesResume : public testing::TestWithParam<const char*> {};

TEST_P(StagesResume, ResumesWithAnyNumberOfStages) {
  const auto folder = resume::folder("stages_" + std::to_string(::getpid()));
  Options o = options();
  o.optimizer = GetParam();
  o.steps = 8;
  const auto full = run({.shard = 2}, o);
  const std::vector<MeshShape> shapes{{.shard = 2}, {.shard = 2, .pp = 2}, {.pp = 4}};
  for (const MeshShape& from : shapes) {
    Options first = o, rest = o;
    first.steps = 4;
    first.save = rest.load = folder;
    run(from, first);
    for (const MeshShape& to : shapes) {
      EXPECT_LE(resume::largest_difference(run(to, rest), full), 1e-9) << from.str() << " to " << to.str();
    }
    std::filesystem::remove_all(folder);
  }
}

// Each stage has those of its own layers.
TEST(Stages, BiasesOfLoadBalancersAreResumed) {
  const auto folder = resume::folder("stages_bias_" + std::to_string(::getpid()));
  Options o = options();
  o.experts.emplace().balance = "bias";
  o.experts->show_load = false;
  o.steps = 6;
  const auto full = run({.shard = 2}, o);
  Options first = o, rest = o;
  first.steps = 3, first.save = rest.load = folder;
  run({.shard = 2, .pp = 2}, first);
  for (const MeshShape& to : std::vector<MeshShape>{{.shard = 2}, {.pp = 2}}) {
    EXPECT_LE(resume::largest_difference(run(to, rest), full), 1e-9) << to.str();
  }
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, StagesResume, testing::Values("adamw", "muon"));

}  // namespace
