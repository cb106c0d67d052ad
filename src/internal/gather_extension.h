// What a unit of fully_shard gathers for one parameter, if that is not its shard: tensors of a narrow dtype, scales,
// the tensors inside a wrapper subclass. See docs/design/fsdp.md, "What a gather carries".
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

struct GatherExtension {
  using Tensors = std::vector<at::Tensor>;

  // The tensors that this rank contributes for its local tensor. Their sizes and dtypes are equal on all ranks and at
  // each gather.
  std::function<Tensors(const at::Tensor& local)> contribute;
  // Makes the unsharded parameter of the gathered tensors: the contributions of all ranks, one after the other in the
  // first dimension. Also returns the tensors whose memory is freed while the unit is resharded.
  std::function<std::pair<at::Tensor, Tensors>(const Tensors& gathered, at::ScalarType dtype)> unshard;
  // The gathered tensors have been filled again. Fills the unsharded parameter where it does not share their memory.
  std::function<void(const Tensors& gathered, at::ScalarType dtype, const at::Tensor& unsharded)> refill;
};

// Applies to calls with local semantics, from the next gather on. `parameter` is one of a unit.
DTENSOR_API void set_gather_extension(const at::Tensor& parameter, GatherExtension extension);

}  // namespace dtensor
