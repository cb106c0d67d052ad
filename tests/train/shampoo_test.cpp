// Shampoo in the training program on every layout, compared with one device: 36 steps, all except the first
// preconditioned, with new roots every third step. It starts on the meta device, is saved and resumed.
#include <gtest/gtest.h>

#include "dtensor/launch.h"
#include "support/folder.h"
#include "train/layouts/compare.h"
#include "train/run.h"

namespace {

using train::Options;

constexpr std::int64_t kSteps = 36;

Options options() {
  Options o;
  o.optimizer = "shampoo", o.dtype = train::Dtype::float64, o.warmup = 4;
  o.steps = kSteps, o.batch = 8, o.seq = 8, o.hidden = 16, o.layers = 1;
  o.shampoo = {.frequency = 3, .start = 2, .eps = 1e-4};
  return o;
}

const train::Corpus& corpus() {
  static const auto text = train::Corpus::read({}, 8);
  return text;
}

std::vector<double> on(Options o, train::MeshShape mesh) {
  o.mesh = mesh;
  std::vector<double> curve;
  dtensor::run_local(static_cast<int>(mesh.size()), [&](dtensor::Communicator world) {
    const auto mine = train::losses(train::train_on_mesh(world, o, corpus(), {}));
    if (world.rank() == 0) curve = mine;
  });
  return curve;
}

double apart(const std::vector<double>& a, const std::vector<double>& b) {
  const auto differences = train::relative_difference(a, b);
  return *std::max_element(differences.begin(), differences.end());
}

TEST(ShampooInTrain, MatchesSingleDeviceOnEveryLayout) {
  for (const char* grafting : {"adam", "none"}) {
    auto o = options();
    o.shampoo.grafting = grafting;
    if (o.shampoo.grafting == "none") o.lr = 1e-4;
    const auto reference = train::losses(train::train_on_one_device(o, corpus()));
    EXPECT_LT(reference.back(), reference.front());
    for (const train::MeshShape mesh : {train::MeshShape{2, 1, 1}, {1, 4, 1}, {2, 2, 1}, {1, 1, 2}, {1, 2, 2}}) {
      EXPECT_LE(apart(on(o, mesh), reference), 1e-8) << mesh.str() << ", grafting " << grafting;
    }
  }
}

// Before and after the first roots: the preconditioner has an effect from there on, and again after each update.
TEST(ShampooInTrain, PreconditionerHasAnEffect) {
  auto o = options();
  const auto curve = train::losses(train::train_on_one_device(o, corpus()));
  o.shampoo.start = 1000;
  const auto never = train::losses(train::train_on_one_device(o, corpus()));
  o.shampoo.start = 2, o.shampoo.frequency = 1000;
  const auto once = train::losses(train::train_on_one_device(o, corpus()));
  EXPECT_EQ(curve[1], never[1]);
  EXPECT_NE(curve[2], never[2]);
  EXPECT_EQ(curve[2], once[2]);
  EXPECT_NE(curve[4], once[4]);
  EXPECT_GT(apart(curve, never), 1e-3);
}

TEST(ShampooInTrain, ResumesOnAnotherMesh) {
  const dtensor::test::Folder folder;
  const std::string saved = folder / "saved";
  auto o = options();
  const auto full = on(o, {1, 4, 1});
  o.steps = 18, o.save = saved;
  on(o, {1, 4, 1});
  o.steps = kSteps, o.save = "", o.load = saved;
  const auto rest = on(o, {2, 1, 2});
  EXPECT_LE(apart(rest, {full.begin() + 18, full.end()}), 1e-8);
}

}  // namespace
