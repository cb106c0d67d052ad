// --fused-loss computes logits and loss together: the curve is that of the program without it, on every layout.
#include <gtest/gtest.h>

#include "dtensor/debug.h"
#include "resume.h"

namespace {

using train::MeshShape;
using train::Options;

Options options() {
  Options o = resume::options();
  o.steps = 3;
  o.hidden = 16;
  return o;
}

std::vector<double> losses(const MeshShape& shape, Options o, bool fused) {
  o.mesh = shape;
  o.fused_loss = fused;
  std::vector<double> result;
  dtensor::run_local(static_cast<int>(shape.size()), [&](dtensor::Communicator world) {
    const auto mine = train::train_on_mesh(world, o, resume::corpus(), {});
    if (world.rank() != 0) return;
    for (const auto& record : mine) result.push_back(record.loss), result.push_back(record.grad_norm);
  });
  return result;
}

void expect_same_curve(const MeshShape& shape, const Options& o, double tolerance = 1e-9) {
  const auto fused = losses(shape, o, true), separate = losses(shape, o, false);
  ASSERT_EQ(fused.size(), separate.size());
  for (std::size_t i = 0; i < fused.size(); ++i) {
    EXPECT_NEAR(fused[i], separate[i], tolerance * std::abs(separate[i])) << shape.str() << " number " << i;
  }
}

TEST(FusedLoss, HasTheCurveOfSeparateLogits) {
  Options o = options();
  for (const MeshShape& shape : {MeshShape{}, MeshShape{.shard = 2}, MeshShape{.tp = 2},
                                 MeshShape{.replicate = 2, .tp = 2}, MeshShape{.cp = 2}}) {
    expect_same_curve(shape, o);
  }
  o.sequence_parallel = true;
  expect_same_curve({.shard = 2, .tp = 2}, o);
  o = options();
  o.grad_accum = 2;
  o.predict_tokens = 3;
  expect_same_curve({.shard = 2}, o);
  expect_same_curve({.tp = 2}, o);
}

TEST(FusedLoss, HasTheCurveOfSeparateLogitsInStages) {
  Options o = options();
  o.layers = 2;
  o.microbatches = 2;
  o.predict_tokens = 2;
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    o.schedule = schedule;
    expect_same_curve({.pp = 2}, o);
    expect_same_curve({.shard = 2, .pp = 2}, o);
  }
}

TEST(FusedLoss, HasTheCurveOfSeparateLogitsInBfloat16) {
  Options o = options();
  o.dtype = train::Dtype::float32;
  o.bf16 = true;
  expect_same_curve({.shard = 2}, o, 2e-2);
  expect_same_curve({.shard = 2, .tp = 2}, o, 2e-2);
}

}  // namespace
