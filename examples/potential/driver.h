// The driver: a periodic box of atoms, cut into slabs. Each rank owns the atoms of its slab and has ghosts of the atoms
// within the cutoff of it, as in molecular dynamics codes.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "dtensor/halo.h"

namespace potential {

inline constexpr double kCutoff = 2.5;
inline constexpr std::int64_t kSpecies = 2;

// The atoms of a periodic box.
struct System {
  at::Tensor positions;  // float64 [atoms, 3] in [0, box)
  at::Tensor species;    // int64 [atoms] in [0, kSpecies)
  std::array<double, 3> box;
};

// A jittered lattice of (3 * side / 2) x side x side sites in three quarters of the box: the last of four ranks owns no
// atom.
System random_system(std::int64_t side, std::uint64_t seed);

// Pairs of atoms closer than the cutoff: `center` reads `neighbor`, displaced by `shift`.
struct Edges {
  at::Tensor center, neighbor;  // int64 [edges]: rows
  at::Tensor shift;             // float64 [edges, 3]: image of the neighbor, in multiples of the box
};

// The part of a rank. Rows of `edges.neighbor` are the owned atoms, then the ghosts.
struct Domain {
  at::Tensor atoms;  // int64 [owned]: atoms of the system
  dtensor::GraphHalo halo;
  Edges edges;
};

// Cuts the system into one slab along x for each rank, and finds ghosts and edges. Collective.
Domain make_domain(const System& system, const dtensor::Communicator& world);

// The edges of all atoms, without ghosts: the reference.
Edges all_edges(const System& system);

}  // namespace potential
