// The interface to METIS: metis.cpp in builds with METIS, no_metis.cpp in others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtensor::halo {

// The part of each node, int64 [nodes] in [0, parts), for an undirected graph without loops: the neighbors of node i
// are neighbors[offsets[i]], ..., neighbors[offsets[i + 1] - 1]. int64 [nodes + 1] and [2 * edges]; nodes >
// parts > 1.
at::Tensor metis_parts(const at::Tensor& offsets, const at::Tensor& neighbors, std::int64_t parts);

}  // namespace dtensor::halo
