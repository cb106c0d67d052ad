// Ghosts are periodic images of atoms near a slab. The owner of an atom decides which ranks need which image.
#include "driver.h"

#include <ATen/ATen.h>

#include <cmath>
#include <functional>

#include "dtensor/moe/dispatch.h"

namespace potential {
namespace {

// Calls fn with the displacement [3] of each of the 27 images of the box; the first is the box itself.
void for_each_image(const System& system, const std::function<void(const at::Tensor&, bool is_box)>& fn) {
  for (const double x : {0, -1, 1}) {
    for (const double y : {0, -1, 1}) {
      for (const double z : {0, -1, 1}) {
        const at::Tensor shift = at::tensor({x * system.box[0], y * system.box[1], z * system.box[2]}, at::kDouble);
        fn(shift, x == 0 && y == 0 && z == 0);
      }
    }
  }
}

at::Tensor slab_of(const System& system, int parts) {
  return (system.positions.select(1, 0) * (parts / system.box[0])).floor().to(at::kLong).clamp(0, parts - 1);
}

// The rows of `positions` that are within the cutoff of slab `part`.
at::Tensor rows_near(const at::Tensor& positions, const System& system, int part, int parts) {
  const double width = system.box[0] / parts;
  const at::Tensor low = at::tensor({part * width, 0.0, 0.0}, at::kDouble);
  const at::Tensor high = at::tensor({(part + 1) * width, system.box[1], system.box[2]}, at::kDouble);
  const at::Tensor outside = (low - positions).clamp_min(0) + (positions - high).clamp_min(0);
  return outside.square().sum(1).lt(kCutoff * kCutoff).nonzero().view(-1);
}

// Rows for rank `to`, and the displacements of their images.
struct Sent {
  at::Tensor rows, shifts;
};

Sent ghosts_for(int to, const at::Tensor& positions, const System& system, const dtensor::Communicator& world) {
  std::vector<at::Tensor> rows, shifts;
  for_each_image(system, [&](const at::Tensor& shift, bool is_box) {
    if (is_box && to == world.rank()) return;
    rows.push_back(rows_near(positions + shift, system, to, world.size()));
    shifts.push_back(shift.expand({rows.back().numel(), 3}));
  });
  return {at::cat(rows), at::cat(shifts)};
}

// Pairs of `centers` [n, 3] and `others` [m, 3] within the cutoff, without the pairs of a center and itself.
at::Tensor pairs(const at::Tensor& centers, const at::Tensor& others, bool same_rows) {
  constexpr std::int64_t kExact = 2;  // no matrix products, which round differently
  at::Tensor near = at::cdist(centers, others, 2, kExact).lt(kCutoff);
  if (same_rows) near.diagonal().fill_(false);
  return near.nonzero();
}

}  // namespace

System random_system(std::int64_t side, std::uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  constexpr double kSpacing = 1.5;
  const double length = kSpacing * static_cast<double>(side);
  const at::Tensor line = at::arange(side, at::kDouble) * kSpacing;
  const at::Tensor sites = at::cartesian_prod({at::arange(3 * side / 2, at::kDouble) * kSpacing, line, line});
  const at::Tensor jitter = at::rand(sites.sizes(), generator, at::kDouble) * 0.5;
  const at::Tensor species = at::randint(kSpecies, {sites.size(0)}, generator, at::kLong);
  return {sites + jitter, species, {2 * length, length, length}};
}

Domain make_domain(const System& system, const dtensor::Communicator& world) {
  const at::Tensor atoms = slab_of(system, world.size()).eq(world.rank()).nonzero().view(-1);
  const at::Tensor positions = system.positions.index_select(0, atoms);
  std::vector<at::Tensor> lists, shifts;
  for (int to = 0; to < world.size(); ++to) {
    Sent sent = ghosts_for(to, positions, system, world);
    lists.push_back(sent.rows);
    shifts.push_back(sent.shifts);
  }
  const dtensor::GraphHalo halo(world, atoms.numel(), lists);
  const at::Tensor received = dtensor::all_to_all(at::cat(shifts), halo.receive_counts(), halo.send_counts(), world);
  const at::Tensor shift = at::cat({at::zeros({atoms.numel(), 3}, at::kDouble), received});
  const at::Tensor rows = pairs(positions, halo.exchange(positions) + shift, true);
  const at::Tensor neighbor = rows.select(1, 1);
  return {atoms, halo, {rows.select(1, 0), neighbor, shift.index_select(0, neighbor)}};
}

Edges all_edges(const System& system) {
  std::vector<at::Tensor> rows, shifts;
  for_each_image(system, [&](const at::Tensor& shift, bool is_box) {
    rows.push_back(pairs(system.positions, system.positions + shift, is_box));
    shifts.push_back(shift.expand({rows.back().size(0), 3}));
  });
  const at::Tensor all = at::cat(rows);
  return {all.select(1, 0), all.select(1, 1), at::cat(shifts)};
}

}  // namespace potential
