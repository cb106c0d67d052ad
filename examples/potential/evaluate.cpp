// Each rank differentiates its own share of the energy and of the loss. Gradients of parameters are summed over ranks.
#include "evaluate.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "dtensor/debug.h"

namespace potential {
namespace {

// The results of a part: its share of the energy and of the loss, the forces on its atoms.
Result evaluate_part(const Model& model, const at::Tensor& positions, const at::Tensor& species, const Edges& edges,
                     const Extend& extend, const at::Tensor& wanted, std::int64_t atoms, Cost* cost) {
  const at::Tensor x = positions.clone().requires_grad_();
  const dtensor::CommDebugMode traffic;
  const at::Tensor e = energy(model, x, species, edges, extend);
  if (cost != nullptr) cost->energy_bytes = traffic.total().bytes;
  const at::Tensor f = forces(e, x);
  if (cost != nullptr) cost->force_bytes = traffic.total().bytes - cost->energy_bytes;
  const at::Tensor loss = (f - wanted).square().sum() / static_cast<double>(3 * atoms);
  return {e.item<double>(), loss.item<double>(), f.detach(), torch::autograd::grad({loss}, model)};
}

// The forces of all atoms, of which this rank has those of `rows`.
at::Tensor all_forces(const at::Tensor& own, const at::Tensor& rows, std::int64_t atoms,
                      const dtensor::Communicator& world) {
  const at::Tensor all = at::zeros({atoms, 3}, at::kDouble).index_copy(0, rows, own);
  world.all_reduce(all, dtensor::ReduceOp::sum).wait();
  return all;
}

std::int64_t others(const std::vector<std::int64_t>& counts, int me) {
  return c10::sum_integers(counts) - counts[static_cast<std::size_t>(me)];
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
}

}  // namespace

Result evaluate(const Model& model, const System& system, const Domain& domain, const at::Tensor& wanted, Cost* cost) {
  const auto& world = domain.halo.ranks();
  const auto atoms = system.positions.size(0);
  const auto own = [&](const at::Tensor& all) { return all.index_select(0, domain.atoms); };
  const Extend extend = [&](const at::Tensor& rows) { return domain.halo.exchange(rows); };
  Result result =
      evaluate_part(model, own(system.positions), own(system.species), domain.edges, extend, own(wanted), atoms, cost);
  result.forces = all_forces(result.forces, domain.atoms, atoms, world);
  const at::Tensor scalars = at::tensor({result.energy, result.loss}, at::kDouble);
  result.gradients.push_back(scalars);
  world.all_reduce_list(result.gradients, dtensor::ReduceOp::sum).wait();
  result.gradients.pop_back();
  result.energy = scalars[0].item<double>();
  result.loss = scalars[1].item<double>();
  if (cost == nullptr) return result;
  cost->owned = domain.halo.owned();
  cost->ghosts = domain.halo.ghosts();
  cost->remote_ghosts = others(domain.halo.receive_counts(), world.rank());
  cost->remote_copies = others(domain.halo.send_counts(), world.rank());
  cost->edges = domain.edges.center.numel();
  return result;
}

Result evaluate_on_one_part(const Model& model, const System& system, const at::Tensor& wanted) {
  const Extend same = [](const at::Tensor& rows) { return rows; };
  return evaluate_part(model, system.positions, system.species, all_edges(system), same, wanted,
                       system.positions.size(0), nullptr);
}

double largest_difference(const Result& a, const Result& b) {
  double largest = std::max(std::abs(a.energy - b.energy), difference(a.forces, b.forces));
  for (std::size_t i = 0; i < a.gradients.size(); ++i)
    largest = std::max(largest, difference(a.gradients[i], b.gradients[i]));
  return std::max(largest, std::abs(a.loss - b.loss));
}

}  // namespace potential
