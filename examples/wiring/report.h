// The report of the wiring check: the ranks, and whether every communicator of a mesh connects the expected ranks.
#pragma once

#include <string>
#include <vector>

#include "dtensor/mesh.h"

namespace wiring {

struct Flags {
  std::vector<std::int64_t> shape;  // Empty: one dimension over the world.
  std::vector<std::string> names;
};

// "dp=2,tp=2"; throws std::invalid_argument with the invalid text.
Flags parse_mesh(const std::string& text);

struct Report {
  std::string text;  // The mesh, and a table of the ranks.
  bool ok = true;    // Every collective gave the expected result on every rank.
};

// Collective over the mesh's world; returns the same report on every rank.
Report check(const dtensor::DeviceMesh& mesh);

}  // namespace wiring
