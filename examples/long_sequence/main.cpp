// What splitting a sequence over ranks buys: peak memory of a rank and seconds of a forward and backward pass through
// transformer blocks, against the length of the sequence, on 1, 2 and 4 thread ranks. The blocks are written for one
// device; that each rank holds a piece of the head and one of the tail is one word in a list of placements.
#include <ATen/ATen.h>
#include <dtensor/dtensor.h>
#include <dtensor/memory_timeline.h>
#include <dtensor/nn.h>
#include <dtensor/parallelize.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace {

using namespace dtensor;

constexpr std::int64_t kHidden = 128;
constexpr int kBlocks = 2;

struct Model final : nn::Module {
  Model() {
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(std::make_unique<nn::Block>(
          nn::Attention::Options{.hidden = kHidden, .heads = 4, .kv_heads = 2, .rope = 10000, .tensor = at::kMeta},
          nn::MLP::Options{.hidden = kHidden, .ffn = 4 * kHidden, .tensor = at::kMeta}));
      register_module("block." + std::to_string(i), *blocks.back());
    }
  }
  at::Tensor forward(at::Tensor x) const {
    for (const auto& block : blocks) x = block->forward(x);
    return x;
  }
  std::vector<std::unique_ptr<nn::Block>> blocks;
};

struct Cost {
  double seconds = 0, bytes = 0;  // of the slowest rank, of the rank with the most
};

Cost measure(const Model& model, const at::Tensor& x, const Communicator& world) {
  world.barrier();
  const auto begin = std::chrono::steady_clock::now();
  MemoryTimeline memory(1 << 16);
  model.forward(x).square().mean().backward();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const at::Tensor most = at::tensor({seconds, static_cast<double>(memory.peak().bytes)}, at::kDouble);
  world.all_reduce(most, ReduceOp::max).wait();
  return {most[0].item<double>(), most[1].item<double>()};
}

// The second of two passes: the first fills caches.
Cost cost_of(int ranks, std::int64_t length) {
  Cost cost;
  run_local(ranks, [&](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {ranks, 1}, {"cp", "tp"});
    Model model;
    parallelize(model, mesh, {});
    manual_seed(mesh, 1);
    model.reset();
    const at::Tensor x = randn({1, length, kHidden}, mesh, {ZigzagShard(1), Replicate()});
    measure(model, x, world);
    const Cost mine = measure(model, x, world);
    if (world.rank() == 0) cost = mine;
  });
  return cost;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t longest = argc > 1 ? std::atoll(argv[1]) : 4096;
  std::printf("%10s  %24s  %24s\n", "", "peak MiB of a rank", "seconds");
  std::printf("%10s  %8s%8s%8s  %8s%8s%8s  (ranks)\n", "tokens", "1", "2", "4", "1", "2", "4");
  for (std::int64_t length = longest / 8; length <= longest; length *= 2) {
    Cost costs[3];
    for (int i = 0; i < 3; ++i) costs[i] = cost_of(1 << i, length);
    std::printf("%10lld", static_cast<long long>(length));
    std::printf("  %8.1f%8.1f%8.1f", costs[0].bytes / 1048576, costs[1].bytes / 1048576, costs[2].bytes / 1048576);
    std::printf("  %8.3f%8.3f%8.3f\n", costs[0].seconds, costs[1].seconds, costs[2].seconds);
  }
  return 0;
}
