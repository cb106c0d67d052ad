#include "plan/measure/calibrate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>

#include "dtensor/comm.h"
#include "dtensor/mesh.h"
#include "dtensor/nn.h"
#include "dtensor/optim.h"
#include "dtensor/parallelize.h"
#include "dtensor/tensor.h"
#include "plan/cost/stage_step.h"
#include "plan/measure/operator_times.h"
#include "plan/workload.h"
#include "train/model/model.h"

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
  return median(std::move(times));
}

nn::DecoderConfig decoder_config(std::int64_t hidden) {
  const std::int64_t vocabulary = hidden % 256 == 0 ? 1000 : 4000;  // products of other shapes with as many FLOPs
  return {.vocabulary = vocabulary, .hidden = hidden, .layers = 2, .ffn = 4 * hidden, .heads = hidden / 32};
}

// A training step of a decoder on one device, with sequences of 64 tokens.
Step decoder_step(std::int64_t hidden, std::int64_t tokens, at::ScalarType dtype) {
  const at::AutoGradMode with_gradients(true);
  const auto model = std::make_shared<nn::Decoder>(decoder_config(hidden));
  std::vector<at::Tensor> parameters;
  for (const auto& [name, tensor] : model->named_parameters()) {
    *tensor = at::empty(tensor->sizes(), at::TensorOptions(dtype)).requires_grad_();
    parameters.push_back(*tensor);
  }
  model->reset();
  const auto optimizer = std::make_shared<AdamW>(parameters);
  const auto ids = at::zeros({tokens / 64, 64}, at::kLong);
  return [=] {
    const at::AutoGradMode enabled(true);
    train::token_loss((*model)(ids), ids).backward();
    clip_grad_norm_(parameters, 1.0);
    optimizer->step();
    optimizer->zero_grad();
  };
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
    steps();
    collectives();
  }

 private:
  // The operators of training steps of small decoders.
  void steps() {
    std::vector<OperatorTime> calls;
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const std::int64_t hidden : {64, 128, 256, 512}) {
        for (const std::int64_t tokens : {64, 512, 2048}) {
          const auto more = time_operators([&] { return decoder_step(hidden, tokens, dtype); });
          calls.insert(calls.end(), more.begin(), more.end());
        }
      }
    }
    if (world_.rank() == 0) hardware_.rates.merge(rates_of(calls));
  }

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
      point("elementwise" + name, 3.0 * static_cast<double>(a.nbytes()), [&] { at::add(a, b); });
    }
  }

  // latency + bytes / bandwidth through small and large collectives: the mean of an all_gather and a reduce_scatter.
  void collectives() {
    HardwareModel::Level level{"core", 1 << 20, 0, 1e10};
    if (world_.size() > 1) {
      constexpr std::int64_t kSmall = 64, kLarge = 1 << 19;
      const double small = seconds_of_collectives(kSmall), large = seconds_of_collectives(kLarge);
      const auto others = static_cast<double>(world_.size() - 1);
      level.latency = small / std::ceil(std::log2(world_.size()));
      level.bandwidth = others * 4 * (kLarge - kSmall) / std::max(1e-9, large - small);
    }
    if (world_.rank() == 0) hardware_.levels = {level};
  }

  double seconds_of_collectives(std::int64_t elements) {
    const auto part = at::ones({elements});
    const std::vector<at::Tensor> parts(static_cast<std::size_t>(world_.size()), part);
    const double gather = median_seconds(world_, [&] {
      std::vector<at::Tensor> outputs;
      for (int r = 0; r < world_.size(); ++r) outputs.push_back(world_.empty({elements}, at::kFloat));
      world_.all_gather(outputs, part).wait();
    });
    const double reduce = median_seconds(world_, [&] {
      auto output = world_.empty({elements}, at::kFloat);
      world_.reduce_scatter(output, parts, ReduceOp::sum).wait();
    });
    return (gather + reduce) / 2;
  }

  Communicator world_;
  HardwareModel& hardware_;
};

// What a step of a small decoder takes beyond its operators and collectives, for each operator.
double seconds_of_call(int ranks, const HardwareModel& hardware) {
  const Workload work{decoder_config(64), 2 * ranks, 32};
  const ParallelLayout layout{.shard = ranks};
  const double seconds = median(measure_steps(work, layout, 51));
  const auto trace =
      run_stage(work, layout, {.part = {work.model.layers}}, {.asynchronous = hardware.asynchronous}).trace;
  const auto operators = std::count_if(trace.events.begin(), trace.events.end(),
                                       [](const auto& e) { return e.kind < StepTrace::Kind::collective; });
  return std::max(0.0, seconds - estimate_step(trace, hardware).seconds) / static_cast<double>(operators);
}

}  // namespace

HardwareModel calibrate(int ranks) {
  HardwareModel hardware;
  hardware.name = "this machine";
  run_local(ranks, [&](const Communicator& world) { Calibration(world, hardware).run(); });
  hardware.operator_seconds = seconds_of_call(ranks, hardware);
  for (const auto& [dtype, curve] : {std::pair("float32", "product"), std::pair("bfloat16", "product bfloat16")}) {
    double best = 0;
    for (const auto& point : hardware.rates[curve]) best = std::max(best, point.rate);
    hardware.peak_flops[dtype] = best;
  }
  return hardware;
}

}  // namespace plan
