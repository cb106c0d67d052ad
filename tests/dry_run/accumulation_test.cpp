// Gradient accumulation of shards and of full gradients: memory, and the same training.
#include <gtest/gtest.h>

#include "dry_run/compare.h"

namespace dry {
namespace {

struct Accumulation {
  Reports reports;
  std::vector<double> loss;
};

train::Options options_of(bool sharded, train::MeshShape mesh) {
  train::Options options;
  options.mesh = mesh;
  options.dtype = train::Dtype::float64;
  options.steps = 4, options.batch = 8, options.seq = 16, options.hidden = 64, options.layers = 4;
  options.grad_accum = 2, options.accumulate_sharded = sharded;
  return options;
}

std::vector<double> losses(const train::Options& options, const train::Corpus& corpus) {
  std::vector<double> losses;
  dtensor::run_local(static_cast<int>(options.mesh->size()), [&](const dtensor::Communicator& world) {
    for (const auto& record : train::train_on_mesh(world, options, corpus, {})) {
      if (world.rank() == 0) losses.push_back(record.loss);
    }
  });
  return losses;
}

std::int64_t gradient_bytes(const train::Options& options) {
  auto config = train::gpt_config(options);
  config.tensor = config.tensor.device(at::kMeta);
  train::Gpt model(config);
  std::int64_t bytes = 0;
  for (const auto& p : model.parameters()) bytes += static_cast<std::int64_t>(p.nbytes());
  return bytes;
}

// Full gradients of all units against shards and the gradients of one unit, which is less than half of the model.
TEST(Accumulation, OfShardsTakesTheMemoryOfShards) {
  for (const train::MeshShape& mesh : {train::MeshShape{.shard = 4}, train::MeshShape{.replicate = 2, .shard = 2}}) {
    const auto sharded = options_of(true, mesh), unsharded = options_of(false, mesh);
    const auto corpus = train::Corpus::read({}, sharded.seq);
    const Reports less = compare(sharded, corpus, 0), more = compare(unsharded, corpus, 0);
    EXPECT_EQ(less.predicted.peak.bytes, less.measured.peak.bytes);
    EXPECT_EQ(more.predicted.peak.bytes, more.measured.peak.bytes);
    const auto all = gradient_bytes(sharded);
    EXPECT_GE(more.measured.peak.bytes - less.measured.peak.bytes, (all - all / mesh.shard) / 2);
    const auto one = losses(sharded, corpus), other = losses(unsharded, corpus);
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], other[i], 1e-12 * one[i]);
  }
}

}  // namespace
}  // namespace dry
