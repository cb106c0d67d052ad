// Checks that ranks of a mesh have the same values, with a hash of each rank's bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "mesh/mesh_impl.h"

namespace dtensor {

// Hashes sizes, dtype and values, but not strides.
std::uint64_t content_hash(const at::Tensor& tensor);

// Throws on every rank unless `tensor` has the same bytes on all ranks that differ along `axes` only. Collective over
// these ranks.
void check_equal_across_ranks(const MeshImpl& mesh, AxisMask axes, const at::Tensor& tensor,
                              const std::string& complaint);

// The same for several tensors, in one exchange; `complaint(i)` is the message for tensor i.
void check_all_equal_across_ranks(const MeshImpl& mesh, AxisMask axes, const std::vector<at::Tensor>& tensors,
                                  const std::function<std::string(std::size_t)>& complaint);

}  // namespace dtensor
