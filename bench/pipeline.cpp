// Pipelines compared with their schedules: the library's overhead for a stage and microbatch, and how close a step is
// to the schedule's critical path (stages that sleep for a known time).
// Run it with threads (--ranks N) or under mpirun.
#include <ATen/ATen.h>
#include <dtensor/dtensor.h>
#include <dtensor/pipeline.h>
#include <torch/csrc/autograd/custom_function.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "timing.h"

namespace {

using namespace dtensor;
using pipeline::Pipeline;
using pipeline::Tensors;

at::Tensor mean_of(const Tensors& outputs, const Tensors&) { return outputs[0].mean(); }

struct Run {
  Pipeline pipe;
  std::vector<Tensors> inputs, targets;

  Run(const DeviceMesh& mesh, const std::string& schedule, int count, const at::Tensor& row)
      : pipe(mesh, pipeline::make_schedule(schedule, static_cast<int>(mesh.size("pp")), count), mean_of),
        inputs(static_cast<std::size_t>(count), {row}),
        targets(static_cast<std::size_t>(count), {row}) {}
};

double step_microseconds(Run& run, const Communicator& world, int iterations) {
  std::vector<double> times;
  for (int i = 0; i < iterations; ++i) {
    world.barrier();
    const auto begin = bench::Clock::now();
    run.pipe.step(run.inputs, run.targets);
    times.push_back(bench::microseconds_since(begin));
  }
  return bench::median(times);
}

// Each stage is one multiplication, so the step is nearly all overhead. Subtracts the same chain on one rank.
void own_cost(const DeviceMesh& mesh, const Communicator& world, int iterations) {
  constexpr int kCount = 32;
  const at::Tensor weight = at::ones({8}).requires_grad_(), row = at::ones({2, 8});
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    Run run(mesh, schedule, kCount, row);
    for (const int stage : run.pipe.stages()) {
      run.pipe.set_stage(stage, [&](const Tensors& in) { return Tensors{in[0] * weight}; });
    }
    step_microseconds(run, world, 5);
    const double step = step_microseconds(run, world, iterations);
    std::vector<double> regular;
    for (int i = 0; i < iterations; ++i) {
      const auto begin = bench::Clock::now();
      for (int m = 0; m < kCount; ++m) (row * weight).mean().backward();
      regular.push_back(bench::microseconds_since(begin));
    }
    const double each = (step - bench::median(regular)) / kCount;
    if (world.rank() == 0) {
      std::printf("%-6s %-12s overhead per microbatch and stage %6.1f us\n", world.backend_name(), schedule.c_str(),
                  each);
    }
  }
}

// Duration of sleeps of 5 ms, on all ranks of this process.
std::atomic<std::int64_t> slept_nanoseconds = 0, sleeps = 0;

void sleep() {
  const auto begin = bench::Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  slept_nanoseconds += static_cast<std::int64_t>(1000 * bench::microseconds_since(begin));
  ++sleeps;
}

struct Sleep final : torch::autograd::Function<Sleep> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x, const at::Tensor& w) {
    sleep();
    return x + w;
  }
  // Sleeps once for the input and once for the weight.
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list g) {
    for (const std::size_t i : {0, 1}) {
      if (context->needs_input_grad(i)) sleep();
    }
    return {g[0], g[0]};
  }
};

void bubble(const DeviceMesh& mesh, const Communicator& world) {
  for (const std::string& schedule : pipeline::schedule_names()) {
    Run run(mesh, schedule, 8, at::ones({2, 8}).requires_grad_());
    std::vector<at::Tensor> weights;
    for (const int stage : run.pipe.stages()) {
      const at::Tensor weight = weights.emplace_back(at::ones({2, 8}).requires_grad_());
      run.pipe.set_stage(stage, [weight](const Tensors& in) { return Tensors{Sleep::apply(in[0], weight)}; });
    }
    step_microseconds(run, world, 1);
    slept_nanoseconds = sleeps = 0;
    world.barrier();
    const double step = step_microseconds(run, world, 9) / 1000;
    const double each = static_cast<double>(slept_nanoseconds) / static_cast<double>(sleeps) / 1e6;
    const double path = pipeline::simulate(run.pipe.schedule(), pipeline::Costs{each, 2 * each, each, each}).makespan;
    if (world.rank() == 0) {
      std::printf("%-6s %-12s step %7.1f ms, critical path %7.1f ms: %.3f\n", world.backend_name(), schedule.c_str(),
                  step, path, step / path);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int ranks = 2, iterations = 50;
  CLI::App app("Step times of pipelines, compared with their schedules");
  app.add_option("--ranks", ranks, "thread ranks, without a launcher")->check(CLI::PositiveNumber);
  app.add_option("--iterations", iterations, "of each")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return launch(argc, argv, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"pp"});
    own_cost(mesh, world, iterations);
    bubble(mesh, world);
  });
}
