// Overhead of a DTensor over plain ATen, per operator: the same call on regular tensors and on DTensors of a mesh of
// one rank, alternating, on one thread; layers with gathered parameters on two ranks. Overhead is per returned tensor.
// A miss is a call that is not in the decision cache.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <benchmark/benchmark.h>
#include <dtensor/dtensor.h>
#include <dtensor/fully_shard.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "timing.h"

namespace {

using namespace dtensor;
using bench::Pair;

struct Options {
  std::int64_t size = 64;
  int calls = 2000, blocks = 41;
  bool json = false;
  std::string device = "cpu";
  c10::DeviceType device_type() const { return device == "cuda" ? at::kCUDA : at::kCPU; }
};

// The operands of one kind: regular or distributed.
struct Operands {
  at::Tensor x, y, weight, x_grad, y_grad;
  std::vector<at::Tensor> params, grads, averages, squares, steps;
};

Operands make_regular(const Options& options) {
  const std::int64_t n = options.size;
  const at::TensorOptions there(options.device_type());
  const auto normal = [&](at::IntArrayRef sizes) { return at::randn(sizes, there); };
  Operands o{normal({n, n}), normal({n, n}), normal({n}), normal({n, n}), normal({n, n}), {}, {}, {}, {}, {}};
  for (int i = 0; i < 100; ++i) {
    for (auto* list : {&o.params, &o.grads, &o.averages}) list->push_back(normal({n, 16}));
    o.squares.push_back(at::rand({n, 16}, there));
    o.steps.push_back(at::ones({}, there));
  }
  return o;
}

Operands distribute(const Operands& regular, const DeviceMesh& mesh, const Placement& placement) {
  const auto place = [&](const at::Tensor& t, const Placement& p) -> at::Tensor {
    return distribute_tensor(t.clone(), mesh, {p});
  };
  Operands o{place(regular.x, placement),
             place(regular.y, Replicate()),
             place(regular.weight, Replicate()),
             place(regular.x_grad, placement),
             place(regular.y_grad, Replicate()),
             {},
             {},
             {},
             {},
             {}};
  for (std::size_t i = 0; i < regular.params.size(); ++i) {
    o.params.push_back(place(regular.params[i], placement));
    o.grads.push_back(place(regular.grads[i], placement));
    o.averages.push_back(place(regular.averages[i], placement));
    o.squares.push_back(place(regular.squares[i], placement));
    o.steps.push_back(place(regular.steps[i], Replicate()));
  }
  return o;
}

class Report {
 public:
  explicit Report(const Options& options) : options_(options) {}

  void head() const {
    if (!options_.json) std::printf("%-28s %-10s %8s %18s\n", "operator", "placement", "ratio", "overhead us/tensor");
  }

  void line(const std::string& name, const std::string& kind, const Pair& pair, int outputs) const {
    const double overhead = pair.overhead / outputs;
    if (options_.json) {
      const nlohmann::json row{
          {"bench", "dispatch"},        {"op", name},           {"kind", kind},           {"outputs", outputs},
          {"regular_us", pair.regular}, {"ours_us", pair.ours}, {"overhead_us", overhead}};
      std::puts(row.dump().c_str());
    } else {
      std::printf("%-28s %-10s %7.2fx %18.3f\n", name.c_str(), kind.c_str(), pair.ours / pair.regular, overhead);
    }
  }

  // Runs the same call on both kinds of operands.
  template <class F>
  void compare(const std::string& name, const std::string& kind, const Operands& regular, const Operands& ours,
               const F& call, int outputs = 1, int calls_per_block = 0) const {
    const int calls = calls_per_block > 0 ? calls_per_block : options_.calls;
    line(name, kind, bench::side_by_side([&] { call(regular); }, [&] { call(ours); }, calls, options_.blocks), outputs);
  }

 private:
  Options options_;
};

template <class T>
void keep(const T& value) {
  benchmark::DoNotOptimize(&value);
}

void single_operators(const Report& report, const std::string& kind, const Operands& regular, const Operands& ours) {
  const std::int64_t n = regular.x.size(0);
  const at::NoGradGuard no_grad;
  report.compare("add", kind, regular, ours, [](const Operands& o) { keep(at::add(o.x, o.y)); });
  report.compare("add_", kind, regular, ours, [](const Operands& o) { keep(at::Tensor(o.x).add_(o.y, 1e-6)); });
  report.compare("mm", kind, regular, ours, [](const Operands& o) { keep(at::mm(o.x, o.y)); });
  report.compare("view", kind, regular, ours, [n](const Operands& o) { keep(o.x.view({n, n / 2, 2})); });
  report.compare("t", kind, regular, ours, [](const Operands& o) { keep(o.x.t()); });
  report.compare("sum", kind, regular, ours, [](const Operands& o) { keep(at::sum(o.x)); });
  report.compare("to bfloat16", kind, regular, ours, [](const Operands& o) { keep(o.x.to(at::kBFloat16)); });
  report.compare("gelu", kind, regular, ours, [](const Operands& o) { keep(at::gelu(o.x)); });
  report.compare(
      "layer_norm", kind, regular, ours,
      [n](const Operands& o) { keep(at::native_layer_norm(o.x, {n}, o.weight, o.weight, 1e-5)); }, 3);
}

void with_grad(const Report& report, const std::string& kind, Operands regular, Operands ours) {
  const std::int64_t n = regular.x.size(0);
  for (Operands* o : {&regular, &ours}) {
    o->x_grad.requires_grad_();
    o->y_grad.requires_grad_();
  }
  report.compare("add, grad", kind, regular, ours, [](const Operands& o) { keep(at::add(o.x_grad, o.y_grad)); });
  report.compare("mm, grad", kind, regular, ours, [](const Operands& o) { keep(at::mm(o.x_grad, o.y_grad)); });
  report.compare("view, grad", kind, regular, ours, [n](const Operands& o) { keep(o.x_grad.view({n, n / 2, 2})); });
  report.compare("sum, grad", kind, regular, ours, [](const Operands& o) { keep(at::sum(o.x_grad)); });
  report.compare(
      "mm, forward and backward", kind, regular, ours,
      [](const Operands& o) {
        at::mm(o.x_grad, o.y_grad).backward(o.x);
        at::Tensor(o.x_grad).mutable_grad().reset();
        at::Tensor(o.y_grad).mutable_grad().reset();
      },
      3, 500);
  for (Operands* o : {&regular, &ours}) o->x_grad = at::neg(o->x_grad), o->y_grad = at::neg(o->y_grad);
  report.compare("add, grad, of results", kind, regular, ours,
                 [](const Operands& o) { keep(at::add(o.x_grad, o.y_grad)); });
}

void lists(const Report& report, const std::string& kind, const Operands& regular, const Operands& ours) {
  const at::NoGradGuard no_grad;
  const int count = static_cast<int>(regular.params.size());
  report.compare(
      "_foreach_add_ of 100", kind, regular, ours,
      [](const Operands& o) { at::_foreach_add_(o.params, o.grads, 1e-6); }, count, 50);
  report.compare(
      "_fused_adamw_ of 100", kind, regular, ours,
      [](const Operands& o) {
        at::_fused_adamw_(o.params, o.grads, o.averages, o.squares, {}, o.steps, 1e-4, 0.9, 0.999, 0.01, 1e-8, false,
                          false);
      },
      count, 50);
}

// Each shape is new to the cache; the second pass over the same operands hits.
void misses(const Report& report, const DeviceMesh& mesh) {
  const int shapes = 400;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> operands, transposed;
  for (int i = 0; i < shapes; ++i) operands.push_back(distribute_tensor(at::ones({i + 1000, 2}), mesh, {Shard(0)}));
  for (const auto& operand : operands) transposed.push_back(operand.t());
  for (const char* name : {"add, a miss", "sum, a miss", "mm, a miss"}) {
    const auto pass = [&] {
      int next = 0;
      const auto call = [&] {
        const at::Tensor &t = operands[next], &other = transposed[next];
        ++next;
        keep(name[0] == 'a' ? at::add(t, t) : name[0] == 's' ? at::sum(t, 0) : at::mm(other, t));
      };
      return bench::time_block(call, shapes);
    };
    const std::uint64_t before = cache_stats().misses;
    const double miss = pass();
    TORCH_CHECK(cache_stats().misses - before >= static_cast<std::uint64_t>(shapes),
                "expected a cache miss for each new shape, got ", cache_stats().misses - before, " misses");
    const double hit = pass();
    report.line(name, "shard0", {hit, miss, miss - hit}, 1);
  }
}

// A list of 100 tensors of `kinds` kinds that is not in the cache.
void list_misses(const Report& report, const DeviceMesh& mesh) {
  constexpr int kLists = 40, kTensors = 100;
  const at::NoGradGuard no_grad;
  for (const int kinds : {10, 100}) {
    std::vector<std::vector<at::Tensor>> lists(kLists);
    for (int i = 0; i < kLists; ++i) {
      for (int k = 0; k < kTensors; ++k) {
        lists[i].push_back(distribute_tensor(at::ones({i * kTensors + k % kinds + kinds, 2}), mesh, {Shard(0)}));
      }
    }
    const auto pass = [&] {
      int next = 0;
      return bench::time_block(
          [&] {
            const auto& list = lists[next++];
            at::_foreach_add_(list, list, 1e-6);
          },
          kLists);
    };
    const double miss = pass(), hit = pass();
    report.line("_foreach_add_, " + std::to_string(kinds) + " kinds", "a miss", {hit, miss, miss - hit}, 1);
  }
}

// Layers whose parameters a unit of fully_shard has gathered, on two ranks at once: the cost of each layer of such a
// model.
void gathered(const Options& options, const Communicator& world) {
  at::set_num_threads(1);
  const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"shard"});
  const std::int64_t n = options.size;
  Operands regular{at::randn({n, n}), at::randn({n, n}), at::randn({n}), {}, {}, {}, {}, {}, {}, {}}, ours = regular;
  ours.x = distribute_tensor(at::randn({2 * n, n}), mesh, {Shard(0)});
  for (at::Tensor* parameter : {&ours.y, &ours.weight}) *parameter = parameter->clone().requires_grad_();
  const auto unit =
      fully_shard(NamedTensors{{"y", &ours.y}, {"weight", &ours.weight}}, mesh, {.reshard_after_forward = false});
  const at::NoGradGuard no_grad;
  const auto compare = [&](const char* name, const auto& call) {
    const Pair pair = bench::side_by_side([&] { call(regular); }, [&] { call(ours); }, options.calls, options.blocks);
    if (world.rank() == 0) Report(options).line(name, "gathered", pair, 1);
  };
  compare("linear", [](const Operands& o) { keep(at::linear(o.x, o.y, o.weight)); });
  compare("layer_norm", [n](const Operands& o) { keep(at::layer_norm(o.x, {n}, o.weight, o.weight)); });
}

void run(const Options& options, const Communicator& world) {
  at::set_num_threads(1);
  const DeviceMesh mesh = init_device_mesh(world, options.device_type(), {1}, {"dp"});
  const Report report(options);
  report.head();
  const Operands regular = make_regular(options);
  const std::pair<const char*, Placement> kinds[] = {{"replicate", Replicate()}, {"shard0", Shard(0)}};
  for (const auto& [kind, placement] : kinds) {
    const Operands ours = distribute(regular, mesh, placement);
    single_operators(report, kind, regular, ours);
    with_grad(report, kind, make_regular(options), distribute(regular, mesh, placement));
    lists(report, kind, regular, ours);
  }
  misses(report, mesh);
  list_misses(report, mesh);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Dispatch overhead of DTensors over plain ATen");
  app.add_option("--size", options.size, "operands are SIZE x SIZE")->check(CLI::PositiveNumber);
  app.add_option("--calls", options.calls, "calls in a block")->check(CLI::PositiveNumber);
  app.add_option("--blocks", options.blocks, "blocks of each kind, alternating")->check(CLI::PositiveNumber);
  app.add_option("--device", options.device,
                 "cpu, or cuda: measures host time only, if blocks of --calls fit into the queue")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_flag("--wall", bench::wall_clock, "measure wall time instead of CPU time of the thread");
  app.add_flag("--json", options.json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);
  if (options.device == "cuda") {
    TORCH_CHECK(at::hasCUDA(), "--device cuda: no GPU, or a build without CUDA (PRESET=cuda)");
    bench::before_block = [] { at::detail::getCUDAHooks().deviceSynchronize(0); };
  }
  run_local(1, [&](const Communicator& world) { run(options, world); });
  if (options.device == "cpu") run_local(2, [&](const Communicator& world) { gathered(options, world); });
}
