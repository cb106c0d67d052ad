// Between DTensors and what the layer computes with: a DTensor's (or plain) input as this rank's tokens, parameters as
// what this rank computes with, and the way back.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/moe/router.h"
#include "dtensor/tensor.h"

namespace dtensor::moe {

// How inputs of one kind (mesh, sizes, placements) become tokens. Made once for each kind.
struct TokenMapping {
  DeviceMesh mesh;        // none: a plain input
  DeviceMesh token_mesh;  // whose ranks have the tokens; none: this rank alone
  std::vector<std::int64_t> sizes;
  Placements input_placements;  // of the input
  Placements tokens;            // all ranks have different ones, but for the ranks of `etp`
  Placements result;  // of what the combination gives: Partial where experts are split over ranks with the same tokens
  TokenLayout layout;
  std::int64_t min_tokens = 0, max_tokens = 0;  // tokens of a rank; alike where the input is plain, which tells nobody
  bool etp_ranks_share_tokens = false;          // the ranks of etp hold the same tokens
};

// How an axis is called here: by its number where the mesh has no names. And this rank's slice along such axes.
std::string axis_name(const DeviceMesh& mesh, std::int64_t axis);
DeviceMesh slice_of(const DeviceMesh& mesh, const std::vector<std::string>& axes);

// `etp`: ranks over which each expert is split (empty: none). Collective only in making communicators.
TokenMapping make_token_mapping(const DTensor& x, at::IntArrayRef etp);
TokenMapping make_regular_mapping(const at::Tensor& x, const DeviceMesh& ranks);

// Those of the kinds of input that a layer has met: a training run has one or two.
class TokenMappings {
 public:
  // `experts`: the mesh that the experts are split over (none: this rank has them), on whose ranks plain inputs are.
  const TokenMapping& of(const at::Tensor& x, const DeviceMesh& experts, at::IntArrayRef etp);
  void clear() { cache_.clear(); }

 private:
  std::vector<TokenMapping> cache_;
};

// Each rank's own memory, also of a tensor that a MeshScope or a plan made a (replicated) DTensor.
at::Tensor local_view(const at::Tensor& t);
// x in `tokens` placements, and this rank's part of such a tensor.
at::Tensor to_tokens(const at::Tensor& x, const TokenMapping& mapping);
at::Tensor local_part(const at::Tensor& x, const TokenMapping& mapping);
// A local result, sized like the local part, to a tensor like the input; a share of a sum to a scalar.
at::Tensor from_local_tokens(const at::Tensor& part, const TokenMapping& mapping);
at::Tensor from_partial_scalar(const at::Tensor& share, const TokenMapping& mapping);

// A parameter that every rank computes with whole, each on other tokens: gathered, its gradient summed. A plain one
// among DTensors counts as Replicate on the input's mesh. One on a slice of the ranks that have tokens is a copy on
// each slice: gradients of all copies are summed. Its mesh must be such a slice.
at::Tensor replicated_parameter(const at::Tensor& parameter, const TokenMapping& mapping);
// An expert parameter: stays split on the axes named in `split`, whole on the others, where gradients are summed.
at::Tensor expert_parameter(const at::Tensor& parameter, const std::vector<std::string>& split,
                            const TokenMapping& mapping);
// How to get that again in backward where it has to be gathered; none where this rank holds it anyway. The parameter
// must not have changed in between.
std::function<at::Tensor()> regather_function(const at::Tensor& parameter, const std::vector<std::string>& split);

}  // namespace dtensor::moe
