// The reference run with blocks as units: the same curve, with the minimum of collectives.
#include <gtest/gtest.h>

#include <map>

#include "dtensor/events.h"
#include "mesh_run.h"
#include "train/layouts/dry_run.h"
#include "train/output/progress.h"
#include "train/run.h"

namespace {

using Counts = std::map<std::string, int>;  // For example "all_gather shard".

struct Case {
  train::MeshShape shape;
  const char* reshard;
  bool loss_parallel = false, bf16 = false;
};

struct Result {
  oracle::Curves curves;
  Counts counts;              // Of the last step.
  std::int64_t gathered = 0;  // Bytes in the last step.
  dtensor::FsdpStats stats;
  std::vector<dtensor::FsdpUnit> units;
};

Result run(const dtensor::Communicator& world, const Case& c) {
  Result result;
  train::Options options;
  options.reshard = c.reshard;
  options.loss_parallel = c.loss_parallel;
  options.bf16 = c.bf16;
  const auto mesh = train::make_mesh(world, c.shape);
  const auto model = oracle::model();
  result.units = train::distribute(*model, mesh, options);
  train::Optimizer optimizer(model->named_parameters(), {});
  for (std::int64_t step = 0; step < 10; ++step) {
    const oracle::Batch b = oracle::batch(step);
    const auto place = [&](const at::Tensor& t) -> at::Tensor {
      return dtensor::distribute_tensor(t, mesh, train::batch_placements());
    };
    const at::Tensor ids = place(b.ids), targets = place(b.targets);
    result.counts.clear();
    at::Tensor loss;
    {
      result.gathered = 0;
      const dtensor::EventListener listener(
          [&](const dtensor::Event& e) {
            ++result.counts[e.name + " " + e.axis];
            if (e.name == "all_gather") result.gathered += e.bytes;
          },
          {dtensor::Event::Kind::collective});
      const dtensor::ComputeScope scope(model->named_parameters());
      loss = train::token_loss((*model)(ids).logits.front(), targets);
      loss.backward();
    }
    result.curves.grad_norm.push_back(oracle::full(optimizer.step()));
    result.curves.loss.push_back(oracle::full(loss));
  }
  result.stats = result.units.back().stats();
  return result;
}

void expect_reference(const std::vector<double>& got, const char* curve) {
  const auto expected = oracle::curve(curve);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5 * expected[i]) << curve << i;
}

Result run(const Case& c) {
  Result result;
  dtensor::run_local(static_cast<int>(c.shape.size()), [&](dtensor::Communicator world) {
    auto mine = run(world, c);
    if (world.rank() != 0) return;
    // Units may be used only on this rank's thread.
    mine.units.clear();
    result = std::move(mine);
  });
  return result;
}

TEST(FsdpCurves, MatchTheReference) {
  for (const Case& c : std::vector<Case>{{{1, 2, 1}, "true"},
                                         {{1, 3, 1}, "false"},
                                         {{2, 2, 1}, "true"},
                                         {{1, 4, 1}, "2"},
                                         {{1, 2, 2}, "true"},
                                         {{1, 2, 3}, "true", true},
                                         {{2, 2, 2}, "true", true}}) {
    SCOPED_TRACE(c.shape.str() + " reshard " + c.reshard);
    const auto result = run(c);
    expect_reference(result.curves.loss, "loss");
    expect_reference(result.curves.grad_norm, "grad_norm");
  }
}

// Five units: four blocks and the rest. The rest is in use when forward ends, and the last block was used before it, so
// both are still gathered when backward starts. The only other reduction is that of the loss.
TEST(FsdpCollectives, AreTheMinimum) {
  EXPECT_EQ(run({{1, 2, 1}, "true"}).counts,
            (Counts{{"all_gather shard", 8}, {"all_reduce shard", 1}, {"reduce_scatter shard", 5}}));
  EXPECT_EQ(run({{1, 2, 1}, "false"}).counts,
            (Counts{{"all_gather shard", 5}, {"all_reduce shard", 1}, {"reduce_scatter shard", 5}}));
  auto hybrid = run({{2, 2, 1}, "true"}).counts;
  EXPECT_EQ(hybrid["all_gather shard"], 8);
  EXPECT_EQ(hybrid["reduce_scatter shard"], 5);
  EXPECT_EQ(hybrid["all_reduce replicate"], 5);
}

TEST(FsdpCollectives, LaterStepsGatherAsTheFirst) {
  const auto result = run({{1, 2, 1}, "true"});
  EXPECT_EQ(result.stats.all_gathers, 10 * 8);
  EXPECT_EQ(result.stats.reduce_scatters, 10 * 5);
}

// The model has a plan for tp, an axis of one rank: its Shard(0) has no effect. A step gathers each block except the
// last twice, the last one and the rest once. A rank receives half of the bytes, in bf16 except for the layer norms.
TEST(FsdpCollectives, MixedPrecisionGathersAsOftenAndHalfTheBytes) {
  const auto wide = run({{1, 2, 1}, "true"}), narrow = run({{1, 2, 1}, "true", false, true});
  EXPECT_EQ(narrow.counts, wide.counts);
  const auto c = train::tiny();
  const std::int64_t blocks = 2 * c.layers - 1;  // Gathered in a step.
  const std::int64_t norms = blocks * 2 * 2 * c.hidden + 2 * c.hidden;
  const std::int64_t block = 4 * c.hidden * c.hidden + 2 * c.hidden * c.ffn;
  const std::int64_t matrices = blocks * block + 2 * c.vocabulary * c.hidden;
  EXPECT_NEAR(wide.gathered, 4 * (matrices + norms) / 2, c.hidden * 8);  // Rank 0 has the larger part of odd sizes.
  EXPECT_NEAR(narrow.gathered, (2 * matrices + 4 * norms) / 2, c.hidden * 8);
}

// The output of --memory.
TEST(FsdpMemory, IsPredicted) {
  struct Case {
    const char* optimizer;
    train::Dtype dtype = train::Dtype::float32;
    const char* grafting = "adam";
    bool bf16 = false;
  };
  for (const Case& c :
       {Case{"adamw", train::Dtype::float32, "adam", true}, Case{"sgd"}, Case{"muon"},
        Case{"muon", train::Dtype::bfloat16}, Case{"shampoo"}, Case{"shampoo", train::Dtype::bfloat16, "none"}}) {
    SCOPED_TRACE(c10::str(c.optimizer, " ", to_string(c.dtype), " ", c.grafting));
    dtensor::run_local(2, [&](dtensor::Communicator world) {
      train::Options options;
      options.mesh = train::MeshShape{1, 2, 1};
      options.optimizer = c.optimizer;
      options.dtype = c.dtype;
      options.shampoo = {.frequency = 1, .start = 1, .grafting = c.grafting};
      options.bf16 = c.bf16;
      options.steps = 2, options.batch = 2, options.seq = 16;
      train::MemoryUse memory;
      train::train_on_mesh(world, options, train::Corpus::read({}, options.seq), {}, &memory);
      EXPECT_GT(memory.measured.parameters, 0);
      if (world.rank() != 0) return;
      memory.predicted = train::predict_memory(options, train::Corpus::read({}, options.seq), 2);
      EXPECT_EQ(memory.predicted, memory.ranks());
      EXPECT_GT(memory.resident, 0);  // Of the process, with other ranks and tests.
      EXPECT_GT(memory.pool.cached_bytes, 0u);
      EXPECT_LE(memory.pool.cached_bytes, memory.pool.limit_bytes);
      EXPECT_EQ(train::memory_table(memory).size(), 8u);
    });
  }
}

}  // namespace
