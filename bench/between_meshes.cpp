// Redistribution from mesh to mesh, compared with a limit: all ranks copy, at the same time, the bytes that they
// receive into an existing buffer. Run it with threads (--ranks 4) or under mpirun.
#include <ATen/ATen.h>
#include <dtensor/dtensor.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <string>

#include "timing.h"

namespace {

using namespace dtensor;

struct Case {
  const char* name;
  std::vector<std::int64_t> from, to;  // World ranks.
  Placement source, target;
};

const std::vector<Case> kCases{{"2 -> 2 disjoint, S(0) -> S(0)", {0, 1}, {2, 3}, Shard(0), Shard(0)},
                               {"2 -> 2 disjoint, S(0) -> S(1)", {0, 1}, {2, 3}, Shard(0), Shard(1)},
                               {"2 -> 4 overlapping, S(0) -> S(0)", {0, 1}, {0, 1, 2, 3}, Shard(0), Shard(0)},
                               {"2 -> 4 overlapping, S(0) -> S(1)", {0, 1}, {0, 1, 2, 3}, Shard(0), Shard(1)},
                               {"4 -> 2 overlapping, S(1) -> R", {0, 1, 2, 3}, {0, 1}, Shard(1), Replicate()}};

template <class F>
double timed(const Communicator& world, const F& call) {
  world.barrier();
  const auto begin = bench::Clock::now();
  call();
  world.barrier();
  return bench::microseconds_since(begin) / 1000;
}

void run_case(const Communicator& world, const Case& what, std::int64_t mb, int iterations) {
  const auto mesh_of = [&](const std::vector<std::int64_t>& ranks) {
    return device_mesh(world, at::kCPU, ranks, {static_cast<std::int64_t>(ranks.size())});
  };
  const DeviceMesh from = mesh_of(what.from), to = mesh_of(what.to);
  const std::int64_t rows = 1024, columns = mb * (1 << 20) / 4 / rows;
  const auto parts = static_cast<std::int64_t>(what.from.size());
  const at::Tensor local = from.is_member() ? at::ones({what.source.is_shard(0) ? rows / parts : rows,
                                                        what.source.is_shard(1) ? columns / parts : columns})
                                            : at::empty({0, 0});
  const DTensor tensor = DTensor::from_local(local, from, {what.source}, {rows, columns});
  std::int64_t received = 0;
  {
    const EventListener listener([&](const Event& e) { received += e.bytes; }, {Event::Kind::collective});
    tensor.redistribute(to, {what.target});
  }
  // A rank that keeps elements also writes them to its result.
  const DTensor result = tensor.redistribute(to, {what.target});
  const auto written = to.is_member() ? static_cast<std::size_t>(result.to_local().nbytes()) : 0;
  const at::Tensor here = at::ones({static_cast<std::int64_t>(written)}, at::kByte), there = at::ones_like(here);
  std::vector<double> ours, copies;
  for (int i = 0; i < iterations; ++i) {
    copies.push_back(timed(world, [&] { std::memcpy(there.data_ptr(), here.data_ptr(), written); }));
    ours.push_back(timed(world, [&] { tensor.redistribute(to, {what.target}); }));
  }
  if (world.rank() != what.to.back()) return;
  std::printf("%-6s %-34s %9.1f MB received %9.2f ms %12.0f%% of the limit\n", world.backend_name(), what.name,
              static_cast<double>(received) / (1 << 20), bench::median(ours),
              100 * bench::median(copies) / bench::median(ours));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  int ranks = 4, iterations = 9;
  std::int64_t mb = 256;
  CLI::App app("Redistribution from mesh to mesh, compared with a copy of the bytes that each rank writes");
  app.add_option("--ranks", ranks, "thread ranks, without a launcher; at least 4")->check(CLI::Range(4, 64));
  app.add_option("--mb", mb, "size of the global tensor")->check(CLI::PositiveNumber);
  app.add_option("--iterations", iterations, "iterations of each, alternating")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return launch(argc, argv, [&](const Communicator& world) {
    const at::NoGradGuard no_grad;
    for (const Case& what : kCases) {
      run_case(world, what, mb, iterations);
      world.barrier();
    }
  });
}
