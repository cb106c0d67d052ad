// The message-passing potential on thread ranks.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "cases.h"
#include "dtensor/bit_identical.h"
#include "dtensor/tensor.h"

namespace potential::test {
namespace {

TEST(Potential, RanksEqualOnePart) {
  for (const int ranks : {1, 2, 3, 4}) {
    dtensor::run_local(ranks, [](const dtensor::Communicator& world) {
      for (const std::int64_t side : {2, 3, 4}) check(world, side, static_cast<std::uint64_t>(side));
    });
  }
}

// Forces are the negative derivatives of the energy of the full system.
TEST(Potential, ForcesMatchFiniteDifferences) {
  dtensor::run_local(2, [](const dtensor::Communicator& world) {
    const System system = random_system(3, 7);
    const at::Tensor zeros = at::zeros_like(system.positions);
    const Model model = random_model(8);
    const auto energy_at = [&](double by) {
      System moved = system;
      moved.positions = system.positions.clone();
      moved.positions[5][1] += by;
      return evaluate(model, moved, make_domain(moved, world), zeros);
    };
    const double step = 1e-5, slope = (energy_at(step).energy - energy_at(-step).energy) / (2 * step);
    EXPECT_NEAR(energy_at(0).forces[5][1].item<double>(), -slope, 1e-6);
  });
}

// Hashes of the energy, the forces and the gradients of a force loss, on DTensors in a BitIdentical scope.
std::vector<std::string> hashes_on(const dtensor::DeviceMesh& mesh, const dtensor::Placements& rows,
                                   const dtensor::Placements& parameters) {
  const System system = random_system(3, 7);
  const Edges all = all_edges(system);
  const auto place = [&](const at::Tensor& t, const dtensor::Placements& p) {
    return at::Tensor(dtensor::distribute_tensor(t.detach(), mesh, p));
  };
  Model model = random_model(8);
  for (auto& p : model) p = place(p, p.dim() == 2 ? parameters : dtensor::Placements(rows.size())).requires_grad_();
  const at::Tensor x = place(system.positions, rows).requires_grad_();
  const Edges edges{place(all.center, rows), place(all.neighbor, rows), place(all.shift, rows)};
  const dtensor::BitIdentical scope(16);
  const at::Tensor e = energy(model, x, place(system.species, rows), edges, [](const at::Tensor& t) { return t; });
  const at::Tensor f = forces(e, x);
  auto results = torch::autograd::grad({f.square().sum()}, model, {}, {}, false, /*allow_unused=*/true);
  results.insert(results.end(), {e, f});
  std::vector<std::string> hashes;
  for (const at::Tensor& t : results) {
    if (t.defined()) hashes.push_back(dtensor::BitIdentical::content_hash(t.detach()));
  }
  return hashes;
}

TEST(Potential, DTensorsInAScopeHaveTheBitsOfOneDevice) {
  using dtensor::Replicate, dtensor::Shard;
  std::vector<std::string> expected;
  const auto run = [&](const std::vector<std::int64_t>& shape, const dtensor::Placements& rows,
                       const dtensor::Placements& parameters) {
    dtensor::run_local(static_cast<int>(c10::multiply_integers(shape)), [&](const dtensor::Communicator& world) {
      const auto hashes = hashes_on(dtensor::init_device_mesh(world, at::kCPU, shape), rows, parameters);
      if (world.size() == 1) expected = hashes;
      EXPECT_EQ(hashes, expected) << "mesh " << at::IntArrayRef(shape);
    });
  };
  run({1}, {Replicate()}, {Replicate()});
  EXPECT_GT(expected.size(), 5u);
  run({2}, {Shard(0)}, {Replicate()});
  run({3}, {Shard(0)}, {Shard(1)});
  run({2, 2}, {Shard(0), Replicate()}, {Replicate(), Shard(1)});
}

}  // namespace
}  // namespace potential::test
