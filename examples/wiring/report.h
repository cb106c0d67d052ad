// What a wiring check says: who is where, and whether every communicator of a mesh joins the ranks that it should.
#pragma once

#include <string>
#include <vector>

#include "dtensor/mesh.h"

namespace wiring {

struct Flags {
  std::vector<std::int64_t> shape;  // empty: one dimension over the whole world
  std::vector<std::string> names;
};

// "dp=2,tp=2"; throws std::invalid_argument with the offending text.
Flags parse_mesh(const std::string& text);

struct Report {
  std::string text;  // the mesh drawn, and a table of the ranks
  bool ok = true;    // every collective gave what it should, on every rank
};

// Collective over the mesh's world; the same on every rank.
Report check(const dtensor::DeviceMesh& mesh);

}  // namespace wiring
