// Checks communication before a long run. Prints rank, world size, device and host of each rank, and the mesh with the
// lines of each rank. Checks each communicator with a small collective.
//
//   wiring --mesh replicate=2,shard=2,tp=2              thread ranks
//   mpirun -n 4 wiring --mesh dp=2,tp=2                 processes
//   wiring --ranks 2 --debug-rank 1                     rank 1 waits for a debugger; -1: each in turn
//
// Exit status: 0; 1 if a collective failed or gave a wrong result; 2 for a mesh that does not fit.
#include <atomic>
#include <cstdio>
#include <optional>
#include <stdexcept>

#include "dtensor/debug.h"
#include "dtensor/launch.h"
#include "launch_flags.h"
#include "report.h"

namespace {

std::int64_t ranks_of(const wiring::Flags& flags) {
  std::int64_t n = 1;
  for (const auto size : flags.shape) n *= size;
  return n;
}

void check_on(const dtensor::Communicator& world, wiring::Flags flags, const std::optional<int>& stops,
              const std::string& device) {
  if (stops) dtensor::debug_rank(world, *stops);  // Prints how to attach; the other ranks wait without a timeout.
  if (flags.shape.empty()) flags = {{world.size()}, {"world"}};
  const auto mesh = dtensor::init_device_mesh(world, device_flag::of(device, world), flags.shape, flags.names);
  const auto report = wiring::check(mesh);
  if (world.rank() == 0) std::fputs(report.text.c_str(), stdout);
  if (!report.ok) throw std::runtime_error("a communicator does not connect the expected ranks");
}

}  // namespace

int main(int argc, char** argv) {
  std::string text, device;
  std::optional<int> stops;
  CLI::App app("Checks that the ranks of a mesh can communicate.");
  app.add_option("--mesh", text, "NAME=SIZE,... (default: one dimension over all ranks)");
  app.add_option("--debug-rank", stops,
                 "the rank that waits for a debugger while the others wait for it; -1: each in turn")
      ->check(CLI::Range(-1, 4095));
  if (const auto status = launch_flags::parse(app, argc, argv, &device)) return *status;
  wiring::Flags flags;
  try {
    flags = wiring::parse_mesh(text);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "wiring: %s\n", error.what());
    return 2;
  }
  std::atomic<bool> fits{true};
  const int status = dtensor::launch(argc, argv, [&](const dtensor::Communicator& world) {
    if (ranks_of(flags) <= world.size()) return check_on(world, flags, stops, device);
    fits = false;  // On every rank.
    if (world.rank() == 0) {
      std::fprintf(stderr, "wiring: --mesh %s needs %lld ranks, the world has %d\n", text.c_str(),
                   static_cast<long long>(ranks_of(flags)), world.size());
    }
  });
  return fits ? status : 2;
}
