// Redistribution of one large tensor, compared with a limit: all ranks copy, at the same time, the bytes that must move
// into an existing buffer. These are the bytes of the result or those received from others, whichever are more. Run it
// with threads (--ranks N) or under mpirun.
#include <ATen/ATen.h>
#include <dtensor/dtensor.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "timing.h"

namespace {

using namespace dtensor;

struct Options {
  int mb = 64, iterations = 9, ranks = 1;
  bool json = false;
};

struct Case {
  const char* name;
  const char* peer;  // Its name in bench/peers.
  Placement from, to;
  double limit_share;  // Fraction of the tensor's bytes: the larger of each rank's result and what it receives.
};

std::vector<Case> cases(int n) {
  const double part = 1.0 / n, others = 1.0 - part;
  return {{"S(0)->S(1)", "Shard0->Shard1", Shard(0), Shard(1), part},
          {"S(0)->R", "Shard0->Replicate", Shard(0), Replicate(), 1},
          {"S(1)->R", "Shard1->Replicate", Shard(1), Replicate(), 1},
          {"P->R", "Partial->Replicate", Partial(), Replicate(), std::max(1.0, 2 * others)},
          {"P->S(0)", "Partial->Shard0", Partial(), Shard(0), std::max(part, others)},
          {"P->S(1)", "Partial->Shard1", Partial(), Shard(1), std::max(part, others)},
          {"R->S(0)", "Replicate->Shard0", Replicate(), Shard(0), part}};
}

// Milliseconds of a call on every rank, between two barriers.
template <class F>
double timed(const Communicator& world, const F& call) {
  world.barrier();
  const bench::Clock::time_point begin = bench::Clock::now();
  call();
  world.barrier();
  return bench::microseconds_since(begin) / 1000;
}

struct Measured {
  double redistribute = 0, copy = 0;
  std::int64_t bytes = 0;  // Received from other ranks.
};

at::Tensor source(const DeviceMesh& mesh, const Placement& from, std::int64_t rows, std::int64_t columns) {
  const std::int64_t n = mesh.size();
  const std::vector<std::int64_t> local{from.is_shard(0) ? rows / n : rows, from.is_shard(1) ? columns / n : columns};
  return DTensor::from_local(at::ones(local), mesh, {from}, {rows, columns});
}

Measured measure(const Options& options, const DeviceMesh& mesh, const Case& what) {
  const Communicator world = mesh.communicator();
  const std::int64_t rows = 1024, columns = std::int64_t{options.mb} * (1 << 20) / 4 / rows;
  const DTensor tensor(source(mesh, what.from, rows, columns));
  const std::size_t copied = static_cast<std::size_t>(what.limit_share * options.mb * (1 << 20));
  const at::Tensor here = at::ones({static_cast<std::int64_t>(copied)}, at::kByte), there = at::ones_like(here);
  Measured result;
  {
    const EventListener listener(
        [&](const Event& e) { result.bytes += e.kind == Event::Kind::collective ? e.bytes : 0; });
    tensor.redistribute({what.to});
  }
  std::vector<double> ours, copies;
  for (int i = 0; i < options.iterations; ++i) {
    copies.push_back(timed(world, [&] { std::memcpy(there.data_ptr(), here.data_ptr(), copied); }));
    ours.push_back(timed(world, [&] { tensor.redistribute({what.to}); }));
  }
  return {bench::median(ours), bench::median(copies), result.bytes};
}

void report(const Options& options, const Communicator& world, const Case& what, const Measured& m) {
  if (options.json) {
    const nlohmann::json row{{"bench", "redistribute"}, {"op", what.peer},  {"backend", world.backend_name()},
                             {"ranks", world.size()},   {"mb", options.mb}, {"ms", m.redistribute},
                             {"copy_ms", m.copy}};
    std::puts(row.dump().c_str());
  } else {
    std::printf("%-6s %5d  %-12s %9.1f MB %9.2fx %12.0f%%\n", world.backend_name(), world.size(), what.name,
                static_cast<double>(m.bytes) / (1 << 20), m.redistribute / m.copy, 100 * m.copy / m.redistribute);
  }
  std::fflush(stdout);
}

void run(const Options& options, const Communicator& world) {
  const at::NoGradGuard no_grad;
  const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"dp"});
  const bool speaks = world.rank() == 0;
  if (speaks && !options.json) {
    std::printf("%-6s %5s  %-12s %12s %10s %13s\n", "", "ranks", "case", "received", "of a copy", "of the limit");
  }
  for (const Case& what : cases(world.size())) {
    const Measured m = measure(options, mesh, what);
    if (speaks) report(options, world, what, m);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Redistribution, compared with a copy of the bytes that must move");
  app.add_option("--ranks", options.ranks, "thread ranks, without a launcher")->check(CLI::PositiveNumber);
  app.add_option("--mb", options.mb, "size of the global tensor")->check(CLI::PositiveNumber);
  app.add_option("--iterations", options.iterations, "iterations of each, alternating")->check(CLI::PositiveNumber);
  app.add_flag("--json", options.json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);
  return launch(argc, argv, [&](const Communicator& world) { run(options, world); });
}
