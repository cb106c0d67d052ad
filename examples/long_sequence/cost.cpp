// The blocks are written for one device. A placement (zigzag) gives each rank a chunk of the head and one of the tail
// of the sequence.
#include "cost.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dtensor/debug.h>
#include <dtensor/dtensor.h>
#include <dtensor/nn.h>
#include <dtensor/parallelize.h>
#include <time.h>

#include <chrono>

namespace long_sequence {
namespace {

using namespace dtensor;

constexpr std::int64_t kHidden = 128;
constexpr int kBlocks = 2;

struct Model final : nn::Callable<Model> {
  Model() {
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(std::make_unique<nn::Block>(
          nn::Attention::Options{.hidden = kHidden, .heads = 4, .kv_heads = 2, .rope = 10000, .tensor = at::kMeta},
          nn::MLP::Options{.hidden = kHidden, .ffn = 4 * kHidden, .tensor = at::kMeta}));
      register_module("block." + std::to_string(i), *blocks.back());
    }
  }
  at::Tensor forward(at::Tensor x) const {
    for (const auto& block : blocks) x = (*block)(x);
    return x;
  }
  std::vector<std::unique_ptr<nn::Block>> blocks;
};

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Cost measure(const Model& model, const at::Tensor& x, const Communicator& world) {
  world.barrier();
  const auto begin = std::chrono::steady_clock::now();
  const double used = processor_seconds();
  MemoryTimeline memory(1 << 16);
  model(x).square().mean().backward();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double processor = processor_seconds() - used;
  const at::Tensor most = at::tensor({static_cast<double>(memory.peak().bytes), seconds, processor}, at::kDouble);
  world.all_reduce(most, ReduceOp::max).wait();
  return {most[0].item<double>(), most[1].item<double>(), most[2].item<double>()};
}

}  // namespace

// Measures the second of two passes; the first fills caches.
Cost cost_of(int ranks, std::int64_t tokens, c10::DeviceType device) {
  Cost cost;
  run_local(ranks, [&](Communicator world) {
    at::set_num_threads(1);
    const DeviceMesh mesh = init_device_mesh(world, device, {ranks, 1}, {"cp", "tp"});
    Model model;
    parallelize(model, mesh, {});
    manual_seed(mesh, 1);
    model.reset();
    const at::Tensor x = randn({1, tokens, kHidden}, mesh, {ZigzagShard(1), Replicate()});
    measure(model, x, world);
    const Cost mine = measure(model, x, world);
    if (world.rank() == 0) cost = mine;
  });
  return cost;
}

}  // namespace long_sequence
