// Dry runs predict what processes do, as they predict thread ranks.
#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>

#include "dry_run/random_runs.h"
#include "dtensor/launch.h"
#include "rapidcheck/detail/Configuration.h"

namespace {

// Without FSDP all gradients are reduced in one list, of which processes receive parts from each other.
dry::Options packed_gradients() {
  dry::Options options;
  options.mesh = train::MeshShape{.replicate = 2};
  options.batch = 4, options.seq = 32, options.hidden = 64, options.layers = 2;
  options.dtype = train::Dtype::float64, options.parallel = "plain", options.optimizer = "muon";
  options.loss_parallel = options.checkpoint_activations = options.rope = true;
  options.kv_heads = options.grad_accum = 2;
  return options;
}

// The gradient of an embedding of which the ranks have unequal shards is reduced last.
dry::Options uneven_shards() {
  dry::Options options;
  options.mesh = train::MeshShape{.shard = 2};
  options.batch = 2, options.seq = 32, options.hidden = 64, options.layers = 1;
  options.vocabulary = 4001;
  return options;
}

dry::Options float8_products() {
  dry::Options options;
  options.mesh = train::MeshShape{.shard = 2};
  options.batch = 4, options.seq = 64, options.hidden = 128, options.layers = 2;
  options.bf16 = options.float8 = true;
  return options;
}

dry::Options drawn_options(std::uint64_t seed, int ranks) {
  auto meshes = dry::meshes();
  std::erase_if(meshes, [&](const auto& mesh) { return mesh.size() != ranks; });
  const auto draw = rc::gen::exec([&] { return dry::any_options(meshes); });
  return draw(rc::Random(seed), rc::kNominalSize).value();
}

// RC_PARAMS="max_success=50 seed=100" draws other runs.
std::vector<dry::Options> runs_of(int ranks) {
  std::uint64_t first = 0;
  int draws = 6;
  if (std::getenv("RC_PARAMS") != nullptr) {
    const auto& params = rc::detail::configuration().testParams;
    first = params.seed, draws = params.maxSuccess;
  }
  std::vector<dry::Options> runs;
  for (int i = 0; i < draws; ++i) runs.push_back(drawn_options(first + static_cast<std::uint64_t>(i), ranks));
  if (ranks == 2) {
    for (const auto& fixed : {packed_gradients(), uneven_shards(), float8_products()}) runs.push_back(fixed);
  }
  return runs;
}

void check_run(const dtensor::Communicator& world, dry::Options options) {
  options.steps = 2, options.device = "cpu";
  if (options.experts) options.experts->show_load = false;
  const auto run = [&](const dtensor::Communicator& ranks) { dry::train_two_steps(ranks, options, dry::corpus()); };
  dry::Reports reports;
  {
    const dtensor::StepRecorder recorder;
    run(world);
    reports.measured = recorder.report(world);
  }
  const bool staging = std::string(world.backend_name()) != "local";
  reports.predicted =
      dtensor::dry_run({.ranks = world.size(), .rank = world.rank(), .number = 1, .staging = staging}, run);
  const auto wrong = dry::difference(options, reports);
  TORCH_CHECK(wrong.empty(), "rank ", world.rank(), ": ", wrong, " of ", dry::text(options), "\npredicted\n",
              reports.predicted.table(), "measured\n", reports.measured.table());
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::launch(argc, argv, [](const dtensor::Communicator& world) {
    for (const dry::Options& options : runs_of(world.size())) {
      check_run(world, options);
      if (world.rank() == 0) std::printf("ok %s (%s)\n", dry::text(options).c_str(), world.backend_name());
    }
  });
}
