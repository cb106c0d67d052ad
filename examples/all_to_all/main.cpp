// The uneven all-to-all: rank 0 has [0 .. 4] and sends 2 and 3 elements, rank 1 has [10 .. 15] and sends 3 and 3. Run
// it with `--ranks 2` or under `mpirun -n 2`. With floats the example also prints the gradient, which is sent back.
#include <ATen/ATen.h>
#include <dtensor/dtensor.h>
#include <dtensor/moe.h>

#include <iostream>
#include <sstream>

#include "launch_flags.h"

namespace {

using dtensor::Communicator;

std::string text(const at::Tensor& values) {
  std::ostringstream out;
  for (std::int64_t i = 0; i < values.numel(); ++i) out << (i ? " " : "") << values[i].item<double>();
  return out.str();
}

// Prints rank by rank, so that lines do not interleave.
void print_in_rank_order(const Communicator& world, const std::string& line) {
  for (int turn = 0; turn < world.size(); ++turn) {
    if (turn == world.rank()) std::cout << "rank " << turn << ": " << line << std::endl;
    world.barrier();
  }
}

void run(const Communicator& world, const std::string& device) {
  TORCH_CHECK(world.size() == 2, "expected 2 ranks, got ", world.size(), ": use --ranks 2");
  const bool first = world.rank() == 0;
  const std::vector<std::int64_t> send = first ? std::vector<std::int64_t>{2, 3} : std::vector<std::int64_t>{3, 3};
  const auto options = at::TensorOptions(at::kInt).device(device_flag::of(device, world));
  const at::Tensor mine = first ? at::arange(0, 5, options) : at::arange(10, 16, options);
  const at::Tensor got = dtensor::all_to_all(mine, send, world);  // Receives the splits of the other ranks.

  const at::Tensor x = mine.to(at::kDouble).requires_grad_();
  const at::Tensor y = dtensor::all_to_all(x, send, world);
  (y * (world.rank() + 1)).sum().backward();  // The gradient of an element shows where it was sent.
  print_in_rank_order(world, "sent [" + text(mine) + "], holds [" + text(got) + "], gradient [" + text(x.grad()) + "]");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Exchanges tensors of different lengths between two ranks.");
  std::string device;
  if (const auto status = launch_flags::parse(app, argc, argv, &device)) return *status;
  return dtensor::launch(argc, argv, [&](const Communicator& world) { run(world, device); });
}
