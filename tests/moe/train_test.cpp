// Training: expert parallel runs are the run of one device over a hundred steps with AdamW and clipping.
#include <gtest/gtest.h>

#include <filesystem>

#include "moe/run.h"
#include "train/compare.h"

namespace {

using moe_example::Options;
using moe_example::StepRecord;

Options options_of(train::Dtype dtype) {
  Options o;
  o.job.dtype = dtype;
  o.job.steps = 100;
  o.job.batch = 8;
  o.job.seq = 8;
  o.job.hidden = 16;
  o.layers = 2;
  o.job.warmup = 10;
  o.ep = 1;
  return o;
}

struct Layout {
  train::MeshShape mesh;
  std::int64_t ep, etp;
};

const train::Corpus& corpus() {
  static const auto text = train::Corpus::read({}, 8);
  return text;
}

double largest_difference(const std::vector<StepRecord>& a, const std::vector<StepRecord>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto relative = [](double x, double y) { return std::abs(x - y) / std::abs(y); };
    largest = std::max(
        {largest, relative(a[i].step.loss, b[i].step.loss), relative(a[i].step.grad_norm, b[i].step.grad_norm)});
    EXPECT_EQ(a[i].dropped, b[i].dropped);
  }
  return largest;
}

void expect_same_curve(Options o, const std::vector<StepRecord>& reference, const Layout& layout, double bound) {
  o.job.mesh = layout.mesh;
  o.ep = layout.ep;
  o.etp = layout.etp;
  std::vector<StepRecord> records;
  dtensor::run_local(static_cast<int>(layout.mesh.size()), [&](dtensor::Communicator world) {
    const auto mine = moe_example::train_on_mesh(world, o, corpus());
    if (world.rank() == 0) records = mine;
  });
  EXPECT_LE(largest_difference(records, reference), bound)
      << layout.mesh.str() << ", ep " << layout.ep << ", etp " << layout.etp;
}

TEST(MoeTraining, ExpertParallelIsOneDeviceInDouble) {
  auto o = options_of(train::Dtype::float64);
  const auto reference = moe_example::train_on_one_device(o, corpus());
  EXPECT_LT(reference.back().step.loss, reference.front().step.loss - 1);
  for (const Layout& layout : {Layout{{1, 2, 1}, 1, 1}, Layout{{1, 2, 1}, 2, 1}, Layout{{1, 2, 2}, 2, 1},
                               Layout{{1, 2, 2}, 2, 2}, Layout{{2, 2, 2}, 4, 1}}) {
    expect_same_curve(o, reference, layout, 1e-9);
  }
  o.job.parallel = "plain";  // without units, each parameter gathered where it is used
  expect_same_curve(o, reference, {{1, 4, 1}, 2, 1}, 1e-9);
}

TEST(MoeTraining, AccumulatedPiecesAreOneDeviceInDouble) {
  auto o = options_of(train::Dtype::float64);
  o.job.steps = 20;
  o.balance = "bias";
  const auto reference = moe_example::train_on_one_device(o, corpus(), 2);
  o.job.grad_accum = 2;
  for (const auto* parallel : {"fsdp", "plain"}) {
    o.job.parallel = parallel;
    expect_same_curve(o, reference, {{1, 4, 1}, 2, 1}, 1e-9);
  }
}

TEST(MoeTraining, CapacityAndBiasAreOneDeviceInDouble) {
  auto o = options_of(train::Dtype::float64);
  o.job.steps = 40;
  o.dispatcher = "capacity";
  o.balance = "bias";
  o.shared = 16;
  const auto reference = moe_example::train_on_one_device(o, corpus());
  expect_same_curve(o, reference, {{1, 2, 2}, 4, 1}, 1e-9);
}

TEST(MoeTraining, ExpertParallelIsOneDeviceInFloat) {
  auto o = options_of(train::Dtype::float32);
  o.balance = "none";
  const auto reference = moe_example::train_on_one_device(o, corpus());
  const auto spread = largest_difference(moe_example::train_on_one_device(o, corpus(), 2), reference);
  expect_same_curve(o, reference, {{1, 2, 1}, 2, 1}, std::max(1e-5, 3 * spread));
  expect_same_curve(o, reference, {{1, 2, 2}, 2, 1}, std::max(1e-5, 3 * spread));
}

// Pitfall G8 of experts: their shards move with the sizes of ep, etp and edp, and nothing is forgotten.
TEST(MoeTraining, G8GoesOnAtAnotherExpertParallelism) {
  const auto folder = std::filesystem::temp_directory_path() / ("dtensor_moe_resume_" + std::to_string(::getpid()));
  auto o = options_of(train::Dtype::float64);
  o.job.steps = 8;
  o.balance = "bias";
  const auto run = [&](const Layout& layout, const char* load, const char* save, std::int64_t steps) {
    Options own = o;
    own.job.mesh = layout.mesh;
    own.ep = layout.ep, own.etp = layout.etp;
    own.job.steps = steps;
    own.job.load = load, own.job.save = save;
    std::vector<StepRecord> records;
    dtensor::run_local(static_cast<int>(layout.mesh.size()), [&](dtensor::Communicator world) {
      const auto mine = moe_example::train_on_mesh(world, own, corpus(), {});
      if (world.rank() == 0) records = mine;
    });
    return records;
  };
  const std::vector<Layout> layouts = {{{1, 2, 2}, 4, 1}, {{1, 2, 1}, 1, 1}, {{1, 2, 2}, 2, 2}, {{2, 1, 1}, 2, 1}};
  const auto whole = run(layouts[0], "", "", 8);
  run(layouts[0], "", folder.c_str(), 4);
  for (const Layout& layout : layouts) {
    const auto rest = run(layout, folder.c_str(), "", 8);
    ASSERT_EQ(rest.front().step.step, 4);
    EXPECT_LE(largest_difference(rest, {whole.begin() + 4, whole.end()}), 1e-9) << layout.mesh.str();
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
