// A training step of a U-Net on one image, whose rows thread ranks with one thread each share, compared with one
// thread: wall time, CPU time and peak memory.
//   bench_images [--size 512] [--ranks 2] [--channels 16] [--times 5]
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "dtensor/dtensor.h"
#include "timing.h"

namespace {

using namespace dtensor;

struct Options {
  std::int64_t size = 512, channels = 16;
  int ranks = 2, times = 5;
};

// Twelve convolutions of kernel 3 on three levels.
std::vector<at::Tensor> weights_of(const Options& o) {
  const auto c = o.channels;
  const std::vector<std::pair<std::int64_t, std::int64_t>> in_out = {
      {1, c},         {c, c},         {c, 2 * c}, {2 * c, 2 * c}, {2 * c, 4 * c}, {4 * c, 4 * c},
      {6 * c, 2 * c}, {2 * c, 2 * c}, {3 * c, c}, {c, c},         {c, c},         {c, 1}};
  std::vector<at::Tensor> weights;
  for (const auto& [in, out] : in_out) weights.push_back(at::randn({out, in, 3, 3}) * 0.1);
  return weights;
}

at::Tensor forward(const std::vector<at::Tensor>& w, const at::Tensor& image) {
  std::size_t next = 0;
  const auto pair = [&](const at::Tensor& x) {
    const auto once = at::relu(at::conv2d(x, w[next++], {}, 1, 1));
    return at::relu(at::conv2d(once, w[next++], {}, 1, 1));
  };
  const auto up = [](const at::Tensor& x, const at::Tensor& like) {
    return at::cat({at::upsample_nearest2d(x, like.sizes().slice(2)), like}, 1);
  };
  const auto fine = pair(image), middle = pair(at::max_pool2d(fine, 2)), coarse = pair(at::max_pool2d(middle, 2));
  const auto decoded = pair(up(pair(up(coarse, middle)), fine));
  return at::conv2d(at::relu(at::conv2d(decoded, w[next], {}, 1, 1)), w[next + 1], {}, 1, 1);
}

struct Result {
  double wall = 0, processor = 0;  // Milliseconds of forward and backward.
  std::int64_t peak = 0;           // Bytes beyond image and weights.
};

Result step(const std::vector<at::Tensor>& weights, const at::Tensor& image) {
  const MemoryTimeline memory;
  const auto begin = bench::Clock::now();
  const double used = bench::now_microseconds();
  torch::autograd::grad({forward(weights, image).square().mean()}, weights);
  return {bench::microseconds_since(begin) / 1e3, (bench::now_microseconds() - used) / 1e3, memory.peak().bytes};
}

enum class Mode { alone, shared, apart };  // apart: regular tensors, an image of its share of the rows on each rank

Result on_ranks(const Options& o, int ranks, Mode mode) {
  Result slowest;
  std::mutex mutex;
  run_local(ranks, [&](const Communicator& world) {
    at::set_num_threads(1);
    const auto mesh = init_device_mesh(world, at::kCPU, {ranks}, {"rows"});
    auto weights = weights_of(o);
    const bool distributed = mode == Mode::shared;
    at::Tensor image = at::randn({1, 1, mode == Mode::apart ? o.size / ranks : o.size, o.size});
    if (distributed) image = distribute_tensor(image, mesh, {Shard(2)});
    for (auto& w : weights)
      w = (distributed ? at::Tensor(distribute_tensor(w, mesh, {Replicate()})) : w).requires_grad_();
    step(weights, image);
    world.barrier();
    const Result result = step(weights, image);
    const std::lock_guard lock(mutex);
    slowest.wall = std::max(slowest.wall, result.wall);
    slowest.processor = std::max(slowest.processor, result.processor);
    slowest.peak = std::max(slowest.peak, result.peak);
  });
  return slowest;
}

void print(const Options& o) {
  std::vector<double> one, many, one_cpu, many_cpu, speedups, bounds;
  Result alone, ranks;
  for (int i = 0; i < o.times; ++i) {  // Alternating.
    alone = on_ranks(o, 1, Mode::alone), ranks = on_ranks(o, o.ranks, Mode::shared);
    bounds.push_back(alone.wall / on_ranks(o, o.ranks, Mode::apart).wall);
    one.push_back(alone.wall), many.push_back(ranks.wall), speedups.push_back(alone.wall / ranks.wall);
    one_cpu.push_back(alone.processor), many_cpu.push_back(ranks.processor);
  }
  std::printf(
      "{\"bench\": \"images\", \"size\": %ld, \"ranks\": %d, \"ms_one_thread\": %.1f, \"ms\": %.1f, \"speedup\": %.2f, "
      "\"speedup_without_halos\": %.2f, "
      "\"cpu_speedup\": %.2f, \"peak_bytes_ratio\": %.2f}\n",
      o.size, o.ranks, bench::median(one), bench::median(many), bench::median(speedups), bench::median(bounds),
      bench::median(one_cpu) / bench::median(many_cpu),
      static_cast<double>(ranks.peak) / static_cast<double>(alone.peak));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("A training step of a U-Net on one image: thread ranks compared with one thread");
  app.add_option("--size", options.size, "rows and columns of the image, a multiple of 4");
  app.add_option("--channels", options.channels, "channels of the first level");
  app.add_option("--ranks", options.ranks, "thread ranks that share the rows");
  app.add_option("--times", options.times, "alternating runs of each");
  CLI11_PARSE(app, argc, argv);
  print(options);
}
