// Conversion between DTensors and the local tensors that the layer computes with: inputs (DTensors or regular tensors)
// to this rank's tokens, parameters to local weights, and results back.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/moe/router.h"
#include "dtensor/tensor.h"

namespace dtensor::moe {

// How inputs with the same mesh, sizes and placements are converted to tokens. Cached per kind of input.
struct TokenMapping {
  DeviceMesh mesh;        // undefined: regular input
  DeviceMesh token_mesh;  // mesh of the ranks with tokens; undefined: this rank alone
  std::vector<std::int64_t> sizes;
  Placements input_placements;  // placements of the input
  Placements tokens;            // all ranks have different tokens, except the ranks of `etp`
  Placements result;  // placements of the result: Partial if experts are split over ranks with the same tokens
  TokenLayout layout;
  std::int64_t min_tokens = 0, max_tokens = 0;  // tokens of a rank; equal (unknown) for regular inputs
  bool etp_ranks_share_tokens = false;          // whether the ranks of etp have the same tokens
  bool bit_identical = false;  // for a BitIdentical scope: tokens in the order of ranks, which the ranks of etp share
};

// Name of an axis, or its number if the mesh has no names; and this rank's slice along such axes.
std::string axis_name(const DeviceMesh& mesh, std::int64_t axis);
DeviceMesh slice_of(const DeviceMesh& mesh, const std::vector<std::string>& axes);

// `etp`: ranks over which each expert is split (empty: none). Collective only because it creates communicators.
TokenMapping make_token_mapping(const DTensor& x, at::IntArrayRef etp);
TokenMapping make_regular_mapping(const at::Tensor& x, const DeviceMesh& ranks);

// Cache of the mappings of a layer; a training run typically has one or two.
class TokenMappings {
 public:
  // `experts`: mesh over which the experts are split, and whose ranks have regular inputs. Undefined: this rank alone.
  const TokenMapping& of(const at::Tensor& x, const DeviceMesh& experts, at::IntArrayRef etp);
  void clear() { cache_.clear(); }

 private:
  std::vector<TokenMapping> cache_;
};

// The local tensor, also if a MeshScope or a plan has made `t` a (replicated) DTensor.
at::Tensor local_view(const at::Tensor& t);
// x redistributed to the `tokens` placements, and the local part of such a tensor.
at::Tensor to_tokens(const at::Tensor& x, const TokenMapping& mapping);
at::Tensor local_part(const at::Tensor& x, const TokenMapping& mapping);
// Converts a local result with the sizes of the local part to a tensor like the input, and a summand to a scalar. A
// scalar that is a DTensor is complete.
at::Tensor from_local_tokens(const at::Tensor& part, const TokenMapping& mapping);
at::Tensor from_partial_scalar(const at::Tensor& share, const TokenMapping& mapping);

// A parameter that all ranks use in full, each for other tokens: gathered, with summed gradient. A regular tensor
// counts as Replicate on the input's mesh. A DTensor on a slice of the ranks with tokens is a replica: gradients of all
// replicas are summed. Its mesh must be such a slice.
at::Tensor replicated_parameter(const at::Tensor& parameter, const TokenMapping& mapping);
// An expert parameter: stays sharded on the axes in `split`, gathered on others, where gradients are summed.
at::Tensor expert_parameter(const at::Tensor& parameter, const std::vector<std::string>& split,
                            const TokenMapping& mapping);
// A function that gathers the parameter again in backward; null if this rank holds it anyway. The parameter must not be
// modified in between.
std::function<at::Tensor()> regather_function(const at::Tensor& parameter, const std::vector<std::string>& split);

}  // namespace dtensor::moe
