#include "calibrate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>

#include "dtensor/comm.h"
#include "dtensor/mesh.h"
#include "dtensor/nn.h"
#include "dtensor/parallelize.h"
#include "dtensor/tensor.h"

namespace plan {

using namespace dtensor;

namespace {

double seconds_of(const std::function<void()>& fn) {
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The median time of a call, over at least 5 calls and 30 ms. Ranks start each call together.
double median_seconds(const Communicator& world, const std::function<void()>& fn) {
  fn();
  const double once = seconds_of(fn);
  auto calls = at::full({1}, std::clamp<std::int64_t>(static_cast<std::int64_t>(0.03 / (once + 1e-9)), 5, 2000));
  world.all_reduce(calls, ReduceOp::max).wait();
  const auto repeats = static_cast<std::size_t>(calls.item<float>());
  std::vector<double> times(repeats);
  world.barrier();
  for (double& time : times) time = seconds_of(fn);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(repeats / 2), times.end());
  return times[repeats / 2];
}

using Curve = std::vector<HardwareModel::Point>;

class Calibration {
 public:
  Calibration(const Communicator& world, HardwareModel& hardware) : world_(world), hardware_(hardware) {}

  void run() {
    const at::NoGradGuard no_grad;
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const std::string name = dtype == at::kFloat ? "" : " bfloat16";
      products(dtype, name);
      attention(dtype, name);
      norms(dtype, name);
      elementwise(dtype, name);
    }
    collectives();
  }

 private:
  // Rank 0 measures for the table while the others compute the same.
  void point(const std::string& curve, double size, const std::function<void()>& fn) {
    const double seconds = median_seconds(world_, fn);
    if (world_.rank() == 0) hardware_.rates[curve].push_back({size, size / seconds});
  }

  void products(at::ScalarType dtype, const std::string& name) {
    for (const std::int64_t n : {16, 32, 64, 128, 256, 512, 1024}) {
      const auto a = at::ones({n, n}, dtype), b = at::ones({n, n}, dtype);
      auto c = at::empty({n, n}, dtype);
      point("product" + name, 2 * std::pow(static_cast<double>(n), 3), [&] { at::mm_out(c, a, b); });
    }
  }

  void attention(at::ScalarType dtype, const std::string& name) {
    for (const std::int64_t s : {32, 64, 128, 256, 512}) {
      const auto q = at::ones({4, 4, s, 32}, dtype);
      point("attention" + name, 2.0 * 16 * static_cast<double>(s * s * 32),
            [&] { at::scaled_dot_product_attention(q, q, q, {}, 0.0, true); });
    }
  }

  void norms(at::ScalarType dtype, const std::string& name) {
    for (const std::int64_t rows : {16, 128, 1024, 8192}) {
      const auto x = at::ones({rows, 256}, dtype), w = at::ones({256}, dtype);
      point("norm" + name, 2.0 * static_cast<double>(x.nbytes()), [&] { at::layer_norm(x, {256}, w, w); });
    }
  }

  void elementwise(at::ScalarType dtype, const std::string& name) {
    for (const std::int64_t n : {1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22}) {
      const auto a = at::ones({n}, dtype), b = at::ones({n}, dtype);
      auto c = at::empty({n}, dtype);
      point("elementwise" + name, 3.0 * static_cast<double>(a.nbytes()), [&] { at::add_out(c, a, b); });
    }
  }

  // latency + bytes / bandwidth through a small and a large all_gather.
  void collectives() {
    HardwareModel::Level level{"core", 1 << 20, 0, 1e10};
    if (world_.size() > 1) {
      const double small = gather_seconds(64), large = gather_seconds(1 << 21);
      const auto others = static_cast<double>(world_.size() - 1);
      level.latency = small / std::ceil(std::log2(world_.size()));
      level.bandwidth = others * 4 * ((1 << 21) - 64) / std::max(1e-9, large - small);
    }
    if (world_.rank() == 0) hardware_.levels = {level};
  }

  double gather_seconds(std::int64_t elements) {
    const auto input = at::ones({elements});
    std::vector<at::Tensor> outputs;
    for (int r = 0; r < world_.size(); ++r) outputs.push_back(world_.empty({elements}, at::kFloat));
    return median_seconds(world_, [&] { world_.all_gather(outputs, input).wait(); });
  }

  Communicator world_;
  HardwareModel& hardware_;
};

// Forward and backward of small layers, whose time is that of the calls.
void small_steps(const Communicator& world, int steps) {
  const auto mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"replicate"});
  nn::Linear a(16, 16, true, at::kFloat), b(16, 16, true, at::kFloat);
  parallelize(a, mesh, {});
  parallelize(b, mesh, {});
  const auto x = distribute_tensor(at::ones({8, 16}), mesh, {Replicate()});
  for (int i = 0; i < steps; ++i) b.forward(at::gelu(a.forward(x))).square().mean().backward();
}

}  // namespace

HardwareModel calibrate(int ranks) {
  HardwareModel hardware;
  hardware.name = "this machine";
  double small = 0;
  constexpr int kSteps = 200;
  run_local(ranks, [&](const Communicator& world) {
    Calibration(world, hardware).run();
    small_steps(world, 20);
    const double seconds = seconds_of([&] { small_steps(world, kSteps); });
    if (world.rank() == 0) small = seconds;
  });
  const auto trace = dry_run({.ranks = ranks, .number = 1, .trace = true}, [&](const Communicator& world) {
                       small_steps(world, 1);
                       StepRecorder::begin_step();
                       small_steps(world, 1);
                     }).trace;
  const auto estimate = estimate_step(trace, hardware);
  const auto operators = std::count_if(trace.events.begin(), trace.events.end(),
                                       [](const auto& e) { return e.kind < StepTrace::Kind::collective; });
  hardware.operator_seconds = std::max(0.0, small / kSteps - estimate.seconds) / static_cast<double>(operators);
  for (const auto& [dtype, curve] : {std::pair("float32", "product"), std::pair("bfloat16", "product bfloat16")}) {
    double best = 0;
    for (const auto& point : hardware.rates[curve]) best = std::max(best, point.rate);
    hardware.peak_flops[dtype] = best;
  }
  return hardware;
}

}  // namespace plan
