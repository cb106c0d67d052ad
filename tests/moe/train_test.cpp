// Training with expert parallelism equals one device over a hundred steps with AdamW and clipping.
#include <gtest/gtest.h>

#include "support/folder.h"
#include "train/layouts/compare.h"
#include "train/run.h"

namespace {

using train::Options;
using train::StepRecord;

Options options_of(train::Dtype dtype) {
  Options o;
  o.dtype = dtype;
  o.steps = 100;
  o.batch = 8;
  o.seq = 8;
  o.hidden = 16;
  o.layers = 2;
  o.warmup = 10;
  o.experts.emplace().ep = 1;
  return o;
}

struct MeshLayout {
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
    largest = std::max({largest, relative(a[i].loss, b[i].loss), relative(a[i].grad_norm, b[i].grad_norm)});
    EXPECT_EQ(a[i].dropped, b[i].dropped);
  }
  return largest;
}

void expect_same_curve(Options o, const std::vector<StepRecord>& reference, const MeshLayout& layout, double bound) {
  o.mesh = layout.mesh;
  o.experts->ep = layout.ep;
  o.experts->etp = layout.etp;
  std::vector<StepRecord> records;
  dtensor::run_local(static_cast<int>(layout.mesh.size()), [&](dtensor::Communicator world) {
    const auto mine = train::train_on_mesh(world, o, corpus(), {});
    if (world.rank() == 0) records = mine;
  });
  EXPECT_LE(largest_difference(records, reference), bound)
      << layout.mesh.str() << ", ep " << layout.ep << ", etp " << layout.etp;
}

TEST(MoeTraining, ExpertParallelEqualsOneDeviceInDouble) {
  auto o = options_of(train::Dtype::float64);
  const auto reference = train::train_on_one_device(o, corpus());
  EXPECT_LT(reference.back().loss, reference.front().loss - 1);
  for (const MeshLayout& layout :
       {MeshLayout{{1, 2, 1}, 1, 1}, MeshLayout{{1, 2, 1}, 2, 1}, MeshLayout{{1, 2, 2}, 2, 1},
        MeshLayout{{1, 2, 2}, 2, 2}, MeshLayout{{2, 2, 2}, 4, 1}}) {
    expect_same_curve(o, reference, layout, 1e-9);
  }
  o.parallel = "plain";  // without FSDP units; each parameter is gathered at its use
  expect_same_curve(o, reference, {{1, 4, 1}, 2, 1}, 1e-9);
}

TEST(MoeTraining, GradientAccumulationEqualsOneDeviceInDouble) {
  auto o = options_of(train::Dtype::float64);
  o.steps = 20;
  o.experts->balance = "bias";
  const auto reference = train::train_on_one_device(o, corpus(), 2);
  o.grad_accum = 2;
  for (const auto* parallel : {"fsdp", "plain"}) {
    o.parallel = parallel;
    expect_same_curve(o, reference, {{1, 4, 1}, 2, 1}, 1e-9);
  }
}

TEST(MoeTraining, CapacityAndBiasEqualOneDeviceInDouble) {
  auto o = options_of(train::Dtype::float64);
  o.steps = 40;
  o.experts->dispatcher = "capacity";
  o.experts->balance = "bias";
  o.experts->shared = 16;
  const auto reference = train::train_on_one_device(o, corpus());
  expect_same_curve(o, reference, {{1, 2, 2}, 4, 1}, 1e-9);
}

TEST(MoeTraining, ExpertParallelEqualsOneDeviceInFloat) {
  auto o = options_of(train::Dtype::float32);
  o.experts->balance = "none";
  const auto reference = train::train_on_one_device(o, corpus());
  const auto spread = largest_difference(train::train_on_one_device(o, corpus(), 2), reference);
  expect_same_curve(o, reference, {{1, 2, 1}, 2, 1}, std::max(1e-5, 3 * spread));
  expect_same_curve(o, reference, {{1, 2, 2}, 2, 1}, std::max(1e-5, 3 * spread));
}

// Parameters and activations are bfloat16, the loss is float. A loss of 5.7 in bfloat16 would be a multiple of 2^-5, so
// that every difference were at least half a percent.
TEST(MoeTraining, ExpertParallelEqualsOneDeviceInBfloat16) {
  auto o = options_of(train::Dtype::bfloat16);
  o.steps = 20;
  const auto reference = train::losses(train::train_on_one_device(o, corpus()));
  for (const MeshLayout& layout : {MeshLayout{{1, 2, 1}, 2, 1}, MeshLayout{{1, 2, 2}, 4, 1}}) {
    o.mesh = layout.mesh;
    o.experts->ep = layout.ep;
    dtensor::run_local(static_cast<int>(layout.mesh.size()), [&](dtensor::Communicator world) {
      const auto mine = train::losses(train::train_on_mesh(world, o, corpus(), {}));
      for (const double d : train::relative_difference(mine, reference)) EXPECT_LE(d, 1e-3) << layout.mesh.str();
    });
  }
}

// A run resumes with all state on other sizes of ep, etp and edp.
TEST(MoeTraining, ResumesWithAnotherExpertParallelism) {
  const dtensor::test::Folder folder;
  const std::string saved = folder / "saved";
  auto o = options_of(train::Dtype::float64);
  o.steps = 8;
  o.experts->balance = "bias";
  const auto run = [&](const MeshLayout& layout, const char* load, const char* save, std::int64_t steps) {
    Options own = o;
    own.mesh = layout.mesh;
    own.experts->ep = layout.ep, own.experts->etp = layout.etp;
    own.steps = steps;
    own.load = load, own.save = save;
    std::vector<StepRecord> records;
    dtensor::run_local(static_cast<int>(layout.mesh.size()), [&](dtensor::Communicator world) {
      const auto mine = train::train_on_mesh(world, own, corpus(), {});
      if (world.rank() == 0) records = mine;
    });
    return records;
  };
  const std::vector<MeshLayout> layouts = {{{1, 2, 2}, 4, 1}, {{1, 2, 1}, 1, 1}, {{1, 2, 2}, 2, 2}, {{2, 1, 1}, 2, 1}};
  const auto full = run(layouts[0], "", "", 8);
  run(layouts[0], "", saved.c_str(), 4);
  for (const MeshLayout& layout : layouts) {
    const auto rest = run(layout, saved.c_str(), "", 8);
    ASSERT_EQ(rest.front().step, 4);
    EXPECT_LE(largest_difference(rest, {full.begin() + 4, full.end()}), 1e-9) << layout.mesh.str();
  }
}

}  // namespace
