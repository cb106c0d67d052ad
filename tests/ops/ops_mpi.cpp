// Operators between processes. A policy rounds sums of half types once; lists of Partials take one all_reduce; a split
// vector is sorted; a table that is split by rows gets its gradient.
#include <ATen/ATen.h>

#include <cstdio>

#include "dtensor/dtensor.h"

namespace {

using namespace dtensor;

at::Tensor wave(at::IntArrayRef sizes, double step) {  // The same on every rank.
  return at::arange(c10::multiply_integers(sizes), at::kDouble).mul_(step).sin_().view(sizes);
}

void check_lists(const DeviceMesh& mesh) {
  std::vector<at::Tensor> shares;
  for (int i = 0; i < 20; ++i) {
    shares.push_back(DTensor::from_local(wave({i % 4, 3}, 0.1 * (i + 1)), mesh, {Partial()}));
  }
  const CommDebugMode mode;
  const auto results = at::_foreach_exp(shares);
  TORCH_CHECK(mode.total("all_reduce").calls == 1 && mode.total().calls == 1, mode.table());
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const auto expected = (DTensor(shares[i]).to_local() * static_cast<double>(mesh.size())).exp();
    TORCH_CHECK(at::allclose(DTensor(results[i]).full_tensor(), expected), "entry ", i);
  }
}

void check_sort(const DeviceMesh& mesh) {
  const auto x = wave({10007}, 0.37).mul(50).round();  // Many equal values.
  for (const bool descending : {false, true}) {
    const auto [values, indices] = at::sort(distribute_tensor(x, mesh, {Shard(0)}), 0, descending);
    const auto [one_values, one_indices] = at::sort(x, /*stable=*/true, 0, descending);
    TORCH_CHECK(at::equal(DTensor(values).full_tensor(), one_values), "values");
    TORCH_CHECK(at::equal(DTensor(indices).full_tensor(), one_indices), "indices");
  }
}

void check_table(const DeviceMesh& mesh) {
  const auto table = wave({11, 3}, 0.9), indices = at::arange(20).remainder(7);
  const auto regular = table.clone().requires_grad_();
  const auto split = distribute_tensor(table, mesh, {Shard(0)}).requires_grad_();
  at::embedding(regular, indices, 2).sin().sum().backward();
  at::embedding(split, distribute_tensor(indices, mesh, {Replicate()}), 2).sin().sum().backward();
  TORCH_CHECK(DTensor(split.grad()).placements() == Placements{Shard(0)}, "placements");
  TORCH_CHECK(at::allclose(DTensor(split.grad()).full_tensor(), regular.grad()), "gradient");
}

}  // namespace

int main(int argc, char** argv) {
  return launch(argc, argv, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {world.size()});
    check_lists(mesh);
    check_sort(mesh);
    check_table(mesh);
    if (world.rank() == 0) std::printf("ok: reductions, lists, sort, tables (%s)\n", world.backend_name());
  });
}
