// Whether the ranks of a mesh hold the same values, by a hash of each rank's bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "mesh/mesh_impl.h"

namespace dtensor {

// Of sizes, type and values; never of the strides.
std::uint64_t content_hash(const at::Tensor& tensor);

// Throws on every rank unless `tensor` holds the same bytes on all ranks that differ along `axes` only. Collective over
// them.
void check_equal_across_ranks(const MeshImpl& mesh, AxisMask axes, const at::Tensor& tensor,
                              const std::string& complaint);

// The same for several tensors, in one exchange; `complaint(i)` is about tensor i.
void check_all_equal_across_ranks(const MeshImpl& mesh, AxisMask axes, const std::vector<at::Tensor>& tensors,
                                  const std::function<std::string(std::size_t)>& complaint);

}  // namespace dtensor
