// The program's training loop and comparison: a hundred steps with clipping, with and without dropout, equal one
// device.
#include <gtest/gtest.h>

#include "support/data.h"
#include "train/layouts/compare.h"
#include "train/run.h"

namespace {

using namespace train;

Options hundred_steps(Dtype dtype, double dropout) {
  Options options;
  options.dtype = dtype;
  options.dropout = dropout;
  options.batch = 6;
  options.seq = 8;
  options.data = {dtensor::test::data_path("oracles/transformer.json")};
  return options;
}

Comparison run_on(const MeshShape& shape, Options options) {
  options.mesh = shape;
  const Corpus corpus = Corpus::read(options.data, options.seq);
  std::vector<StepRecord> records;
  dtensor::run_local(static_cast<int>(shape.size()), [&](dtensor::Communicator world) {
    std::vector<StepRecord> mine = train_on_mesh(world, options, corpus, {});
    if (world.rank() == 0) records = std::move(mine);
  });
  EXPECT_LT(records.back().loss, records.front().loss);
  return compare_with_one_device(options, corpus, records);
}

TEST(HundredSteps, Float64WithDropout) {
  Options options = hundred_steps(Dtype::float64, 0.1);
  options.loss_parallel = true;
  const Comparison comparison = run_on({1, 2, 2}, options);
  EXPECT_LE(comparison.largest, 1e-9);
  EXPECT_TRUE(comparison.equal());
}

TEST(HundredSteps, Float32AgainstRegularTensors) {
  const Comparison comparison = run_on({2, 1, 1}, hundred_steps(Dtype::float32, 0));
  EXPECT_TRUE(comparison.equal()) << comparison.largest << " exceeds " << comparison.bound;
}

// Muon's iterations and Shampoo's eigendecomposition amplify rounding; both stay within the float64 bound.
TEST(HundredSteps, EveryOptimizerMatchesSingleDevice) {
  struct Case {
    const char* name;
    double lr;
    MeshShape shape;
  };
  Options options = hundred_steps(Dtype::float64, 0);
  const Corpus corpus = Corpus::read(options.data, options.seq);
  for (const Case& c : {Case{"sgd", 0.1, {1, 3, 1}}, Case{"shampoo", 1e-3, {1, 2, 2}}, Case{"muon", 1e-3, {2, 1, 1}}}) {
    options.optimizer = c.name;
    options.lr = c.lr;
    const Comparison comparison = run_on(c.shape, options);
    EXPECT_LE(comparison.largest, 1e-9) << c.name << " on " << c.shape.str();
  }
}

TEST(HundredSteps, DifferentSeedsGiveDifferentCurves) {
  Options options = hundred_steps(Dtype::float64, 0);
  options.steps = 2;
  const Corpus corpus = Corpus::read(options.data, options.seq);
  const std::vector<StepRecord> records = train_on_one_device(options, corpus);
  options.seed = 1;
  EXPECT_FALSE(compare_with_one_device(options, corpus, records).equal());
}

}  // namespace
