// A step of apps/train makes the host wait for the device only for the numbers that it prints: it reads nothing
// else and has no blocking copies.
#include "dtensor/fully_shard.h"
#include "dtensor/random.h"
#include "other_device/step.h"
#include "parallel/loss/row_kernels.h"
#include "train/data/data.h"
#include "train/model/loss.h"
#include "train/model/optimizer.h"
#include "train/model/plan.h"

namespace dtensor::test {
namespace {

at::Tensor loss_of(train::Gpt& model, const at::Tensor& ids, const at::Tensor& targets, bool fused) {
  const ComputeScope scope(model.named_parameters());
  auto out = model(ids);
  if (fused) return train::fused_token_losses(out.logits, targets);
  for (at::Tensor& logits : out.logits) logits = scope.output(logits);
  return train::token_losses(out.logits, targets);
}

// Reads and blocking copies of all ranks in the third step; the first two create what is kept between steps.
std::pair<int, int> waits_of_a_step(const train::Options& options) {
  fake::start();
  std::pair<int, int> waits{-1, -1};
  const train::MeshShape shape = *options.mesh;
  run_local(static_cast<int>(shape.size()), [&](Communicator world) {
    const DeviceMesh mesh = train::make_mesh(world, shape, fake::kDevice);
    train::GptConfig config = train::tiny();
    config.hidden = 16, config.ffn = 32, config.layers = 2, config.vocabulary = 50;
    config.fused_loss = options.fused_loss, config.rope = options.rope;
    config.tensor = config.tensor.device(at::kMeta);
    train::Gpt model(config);
    train::distribute(model, mesh, options);
    manual_seed(mesh, 3);
    model.reset();
    train::Optimizer optimizer(model.named_parameters(),
                               {.rate = LearningRate::constant(1e-3).after_warmup(10), .clip = 0.5});
    const auto tokens = [&](std::uint64_t seed) {
      return train::place_batch(Draw(seed).integers({4, 16}, 50), mesh, train::batch_placements(options));
    };
    for (int step = 0; step < 3; ++step) {
      world.barrier();
      fake::host_reads = fake::blocking_copies = 0;
      world.barrier();
      loss_of(model, tokens(1), tokens(2), options.fused_loss).backward();
      optimizer.step();
      world.barrier();
    }
    if (world.rank() == 0) waits = {fake::host_reads, fake::blocking_copies};
    world.barrier();
  });
  return waits;
}

TEST(OtherDevice, TrainStepDoesNotWait) {
  fake::start();
  torch::Library loss(torch::Library::IMPL, "dtensor", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  // Without kernels the host checks the targets.
  loss_rows::register_kernels<loss_rows::largest_loop, loss_rows::sums_loop, loss_rows::gradient_loop>(loss);
  for (const auto& mesh : {train::MeshShape{1, 1, 1}, train::MeshShape{2, 2, 1}, train::MeshShape{1, 2, 2}}) {
    for (const bool mixed : {false, true}) {
      train::Options options;
      options.mesh = mesh, options.bf16 = options.fused_loss = options.rope = mixed;
      EXPECT_EQ(waits_of_a_step(options), std::pair(0, 0)) << mesh.str() << (mixed ? " bf16" : "");
    }
  }
}

}  // namespace
}  // namespace dtensor::test
