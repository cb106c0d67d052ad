// Factory functions that make a tensor straight on a mesh: each rank fills its own part only. Random ones give the same
// global tensor on every mesh and placement (dtensor/random.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "dtensor/tensor.h"

namespace dtensor {

// `placements` empty: Replicate. The device is the mesh's.
DTENSOR_API DTensor zeros(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                          at::TensorOptions options = {});
DTENSOR_API DTensor ones(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                         at::TensorOptions options = {});
DTENSOR_API DTensor empty(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                          at::TensorOptions options = {});
DTENSOR_API DTensor full(at::IntArrayRef sizes, const at::Scalar& value, const DeviceMesh& mesh,
                         Placements placements = {}, at::TensorOptions options = {});
DTENSOR_API DTensor rand(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                         at::TensorOptions options = {});
DTENSOR_API DTensor randn(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                          at::TensorOptions options = {});
// 0, 1, ..., end - 1.
DTENSOR_API DTensor arange(const at::Scalar& end, const DeviceMesh& mesh, Placements placements = {},
                           at::TensorOptions options = {});

}  // namespace dtensor
