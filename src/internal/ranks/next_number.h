// Numbers that are equal on all ranks of a mesh, for names that are unique on each rank.
#pragma once

#include <cstdint>
#include <string>

#include "dtensor/export.h"
#include "dtensor/mesh.h"

namespace dtensor {

// 1 for the first call with this mesh and kind. Ranks that make the same calls get equal numbers.
DTENSOR_API std::uint64_t next_number(const DeviceMesh& mesh, const std::string& kind);

}  // namespace dtensor
