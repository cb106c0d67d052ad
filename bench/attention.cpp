// Attention over a split sequence on thread ranks with one thread each, compared with one thread: forward and backward.
//   bench_attention [--seq 4096] [--ranks 2] [--batch 1] [--heads 8] [--features 64] [--times 5] [--strategy auto]
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "dtensor/dtensor.h"
#include "timing.h"

namespace {

using namespace dtensor;

struct Options {
  std::int64_t seq = 4096, batch = 1, heads = 8, features = 64;
  int ranks = 2, times = 5;
  std::string strategy = "auto", placement = "zigzag";
};

at::Tensor attend(const std::vector<at::Tensor>& in) {
  return at::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0, true);
}

// Milliseconds of a forward and a backward pass: wall time and CPU time of this thread.
struct Time {
  double wall = 0, processor = 0;
};

Time step(const std::vector<at::Tensor>& in, const at::Tensor& grad) {
  const auto begin = bench::Clock::now();
  const double used = bench::now_microseconds();
  torch::autograd::grad({attend(in)}, in, {grad});
  return {bench::microseconds_since(begin) / 1e3, (bench::now_microseconds() - used) / 1e3};
}

at::Tensor tensor_of(const Options& o) { return at::randn({o.batch, o.heads, o.seq, o.features}); }

Time on_one_thread(const Options& o) {
  Time ms;
  run_local(1, [&](Communicator) {
    at::set_num_threads(1);
    std::vector<at::Tensor> in;
    for (int i = 0; i < 3; ++i) in.push_back(tensor_of(o).requires_grad_());
    ms = step(in, tensor_of(o));
  });
  return ms;
}

struct Ranks {
  Time ms;
  std::int64_t held = 0;  // Bytes beyond the inputs, on the rank with the most.
};

Placement placement_of(const Options& o) { return o.placement == "zigzag" ? ZigzagShard(2) : Shard(2); }

Ranks on_ranks(const Options& o) {
  Ranks result;
  std::mutex mutex;
  run_local(o.ranks, [&](Communicator world) {
    at::set_num_threads(1);
    const auto mesh = init_device_mesh(world, at::kCPU, {o.ranks}, {"cp"});
    const AttentionStrategyScope scope(parse_attention_strategy(o.strategy));
    std::vector<at::Tensor> in;
    for (int i = 0; i < 3; ++i) {
      in.push_back(distribute_tensor(tensor_of(o), mesh, {placement_of(o)}).detach().requires_grad_());
    }
    const auto grad = distribute_tensor(tensor_of(o), mesh, {placement_of(o)});
    const MemoryTimeline memory;
    world.barrier();
    const Time ms = step(in, grad);
    world.barrier();
    const std::lock_guard lock(mutex);
    result.ms.wall = std::max(result.ms.wall, ms.wall);
    result.ms.processor = std::max(result.ms.processor, ms.processor);
    result.held = std::max(result.held, memory.peak().bytes);
  });
  return result;
}

void print(const Options& o) {
  std::vector<double> one, many, one_cpu, many_cpu;
  std::int64_t held = 0;
  for (int i = 0; i <= o.times; ++i) {  // Alternating; the first iteration warms up.
    const Time alone = on_one_thread(o);
    const Ranks ranks = on_ranks(o);
    held = ranks.held;
    if (i == 0) continue;
    one.push_back(alone.wall), one_cpu.push_back(alone.processor);
    many.push_back(ranks.ms.wall), many_cpu.push_back(ranks.ms.processor);
  }
  const double a = bench::median(one), b = bench::median(many);
  const double c = bench::median(one_cpu), d = bench::median(many_cpu);
  std::printf("causal, S = %ld, %s, %s: one thread %.1f ms, %d ranks %.1f ms: %.2f times faster",
              static_cast<long>(o.seq), o.placement.c_str(), o.strategy.c_str(), a, o.ranks, b, a / b);
  std::printf(" (CPU time %.1f and %.1f ms: %.2f); %.1f MB per rank beyond its inputs\n", c, d, c / d,
              static_cast<double>(held) / 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Attention over a split sequence, forward and backward");
  app.add_option("--seq", o.seq, "tokens");
  app.add_option("--batch", o.batch, "sequences");
  app.add_option("--heads", o.heads, "heads");
  app.add_option("--features", o.features, "of a head");
  app.add_option("--ranks", o.ranks, "number of thread ranks");
  app.add_option("--times", o.times, "number of passes; the median is reported");
  app.add_option("--strategy", o.strategy, "auto, ring, gather or ulysses");
  app.add_option("--placement", o.placement, "placement of the sequence: zigzag or contiguous")
      ->check(CLI::IsMember({"zigzag", "contiguous"}));
  CLI11_PARSE(app, argc, argv);
  print(o);
  return 0;
}
