// The uneven all-to-all: rank 0 holds [0 .. 4] and sends 2 and 3 of them, rank 1 holds [10 .. 15] and sends 3 and 3.
// Run it with `--ranks 2` or under `mpirun -n 2`. The same with floats shows the gradient, which goes the same way
// back.
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

// One rank after the other, so that lines do not mix.
void print_in_rank_order(const Communicator& world, const std::string& line) {
  for (int turn = 0; turn < world.size(); ++turn) {
    if (turn == world.rank()) std::cout << "rank " << turn << ": " << line << std::endl;
    world.barrier();
  }
}

void exchange(const Communicator& world) {
  TORCH_CHECK(world.size() == 2, "this exchange is one of 2 ranks, not ", world.size(), ": use --ranks 2");
  const bool first = world.rank() == 0;
  const std::vector<std::int64_t> send = first ? std::vector<std::int64_t>{2, 3} : std::vector<std::int64_t>{3, 3};
  const at::Tensor mine = first ? at::arange(0, 5, at::kInt) : at::arange(10, 16, at::kInt);
  const at::Tensor got = dtensor::all_to_all(mine, send, world);  // asks the peers for their splits

  const at::Tensor x = mine.to(at::kDouble).requires_grad_();
  const at::Tensor y = dtensor::all_to_all(x, send, world);
  (y * (world.rank() + 1)).sum().backward();  // an element's gradient says where it went
  print_in_rank_order(world, "sent [" + text(mine) + "], holds [" + text(got) + "], gradient [" + text(x.grad()) + "]");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Two ranks exchange parts of different lengths.");
  if (const auto status = launch_flags::parse(app, argc, argv)) return *status;
  return dtensor::launch(argc, argv, exchange);
}
