// A run with non-finite values stops before the optimizer step, and every rank reports where.
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "dtensor/debug.h"
#include "resume.h"

namespace {

// Texts that the ranks threw, without the module, which depends on how the values overflow.
std::set<std::string> stopped(const train::Options& options, int ranks) {
  std::mutex mutex;
  std::set<std::string> reported;
  dtensor::run_local(ranks, [&](dtensor::Communicator world) {
    try {
      train::train_on_mesh(world, options, resume::corpus(), {});
    } catch (const dtensor::NonFiniteError& error) {
      const std::lock_guard lock(mutex);
      reported.insert(error.what());
    }
  });
  return reported;
}

TEST(NonFinite, OverflowStopsEveryRankWithTheSameText) {
  train::Options options = resume::options("sgd");
  options.dtype = train::Dtype::float32;
  options.warmup = 0;
  options.lr = 1e38;  // The first step sets the parameters to infinity.
  for (const train::MeshShape& mesh : std::vector<train::MeshShape>{{.shard = 2, .tp = 2}, {.shard = 2, .pp = 2}}) {
    options.mesh = mesh;
    const auto reported = stopped(options, 4);
    ASSERT_EQ(reported.size(), 1U) << mesh.str();
    EXPECT_EQ(reported.begin()->find("step 2: the loss is "), 0U) << *reported.begin();
    EXPECT_NE(reported.begin()->find("layers.0."), std::string::npos) << *reported.begin();
    EXPECT_NE(reported.begin()->find("forward, by aten::"), std::string::npos) << *reported.begin();
  }
}

}  // namespace
