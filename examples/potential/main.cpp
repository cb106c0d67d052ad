// A message-passing potential on several ranks, trained on forces, compared with one part.
//
//   potential --ranks 4                 thread ranks
//   mpirun -n 4 potential --side 6      processes
//
// Exit status: 0; 1 if energies, forces or gradients differ from one part by more than 1e-10.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <atomic>
#include <cstdio>

#include "dtensor/launch.h"
#include "evaluate.h"
#include "launch_flags.h"

namespace {

using namespace potential;
using dtensor::Communicator;

void print_row(int rank, const at::Tensor& row) {
  std::printf("%4d", rank);
  for (std::int64_t i = 0; i < row.numel(); ++i) std::printf(" %12lld", static_cast<long long>(row[i].item<int64_t>()));
  std::printf("\n");
}

// Prints the sizes and bytes of all ranks on rank 0.
void print_costs(const Communicator& world, const Cost& c) {
  const at::Tensor own = at::tensor({c.owned, c.ghosts, c.edges, c.energy_bytes, c.force_bytes}, at::kLong);
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < world.size(); ++rank) all.push_back(at::empty_like(own));
  world.all_gather(all, own).wait();
  if (world.rank() != 0) return;
  std::printf("rank        atoms       ghosts        edges energy bytes  force bytes\n");
  for (int rank = 0; rank < world.size(); ++rank) print_row(rank, all[static_cast<std::size_t>(rank)]);
}

void step(Model& model, const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < model.size(); ++i) model[i].sub_(gradients[i], 0.01);
}

// Whether the ranks and one part agree before and after training.
bool run(const Communicator& world, std::int64_t side, std::int64_t steps) {
  const bool shows = world.rank() == 0;
  const System system = random_system(side, 1);
  const at::Tensor zeros = at::zeros_like(system.positions);
  const at::Tensor wanted = evaluate_on_one_part(random_model(3), system, zeros).forces;
  const Domain domain = make_domain(system, world);
  Model model = random_model(2), reference = random_model(2);
  double largest = 0;
  for (std::int64_t i = 0; i <= steps; ++i) {
    Cost cost;
    const Result ranks = evaluate(model, system, domain, wanted, &cost);
    const Result one = evaluate_on_one_part(reference, system, wanted);
    if (i == 0) print_costs(world, cost);
    if (i == 0 && shows) std::printf("step           energy       force loss   difference to one part\n");
    if (shows)
      std::printf("%4lld %16.10f %16.10f %24.1e\n", static_cast<long long>(i), ranks.energy, ranks.loss,
                  largest_difference(ranks, one));
    largest = std::max(largest, largest_difference(ranks, one));
    step(model, ranks.gradients);
    step(reference, one.gradients);
  }
  return largest <= 1e-10;
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t side = 4, steps = 5;
  CLI::App app("Trains a message-passing potential on forces, on ranks with ghost atoms, and compares with one part.");
  app.add_option("--side", side, "lattice sites per edge; 3 / 2 * side^3 atoms")->check(CLI::Range(2, 20));
  app.add_option("--steps", steps, "steps of gradient descent")->check(CLI::Range(0, 1000));
  app.footer("Exit status: 0; 1 if a result differs from one part by more than 1e-10; 2 for invalid arguments.");
  if (const auto status = launch_flags::parse(app, argc, argv)) return *status;
  std::atomic<bool> equal{true};
  const int status = dtensor::launch(argc, argv, [&](const Communicator& world) {
    if (!run(world, side, steps)) equal = false;
  });
  return status != 0 ? status : equal ? 0 : 1;
}
