// A router with jittered inputs draws the numbers of one device on every mesh and with any microbatches, so --compare
// works with it.
#include <gtest/gtest.h>

#include "resume.h"
#include "train/layouts/compare.h"

namespace {

using train::MeshShape;
using train::Options;

Options jittered() {
  Options o = resume::options();
  o.dropout = 0;
  o.hidden = 16, o.layers = 2, o.steps = 3;
  auto& experts = o.experts.emplace();
  experts.ep = 1, experts.jitter = 0.3, experts.z_loss = 1e-3;
  experts.balance = "none";
  return o;
}

double difference_from_one_device(Options o, const MeshShape& shape) {
  o.mesh = shape;
  std::vector<train::StepRecord> records;
  dtensor::run_local(static_cast<int>(shape.size()), [&](dtensor::Communicator world) {
    const auto mine = train::train_on_mesh(world, o, resume::corpus(), {});
    if (world.rank() == 0) records = mine;
  });
  return train::compare_with_one_device(o, resume::corpus(), records).largest;
}

TEST(Jitter, EveryMeshMatchesSingleDevice) {
  for (const MeshShape& shape : {MeshShape{}, MeshShape{.shard = 2}, MeshShape{.tp = 2}, MeshShape{.pp = 2}}) {
    EXPECT_LE(difference_from_one_device(jittered(), shape), 1e-9) << shape.str();
  }
}

TEST(Jitter, MicrobatchesMatchTheFullBatch) {
  Options o = jittered();
  o.grad_accum = 2;
  EXPECT_LE(difference_from_one_device(o, {.shard = 2}), 1e-9);
  o.microbatches = 3;
  EXPECT_LE(difference_from_one_device(o, {.pp = 2}), 1e-9);
}

TEST(Jitter, ExpertChoiceMatchesSingleDevice) {
  Options o = jittered();
  o.experts->router = "experts", o.experts->score_before = true;
  EXPECT_LE(difference_from_one_device(o, {.shard = 2}), 1e-9);
}

}  // namespace
