// map_state_dict_keys(): a model's tensors under another program's names.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "checkpoint/load/stored_pieces.h"
#include "dtensor/tensor.h"

namespace dtensor {
namespace {

struct Part {
  files::StoredPiece piece;
  at::Tensor value;
};

// Redistributes the tensor so that each index of dimension 0 is available as a view on every rank.
at::Tensor unstackable(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return tensor;
  Placements placements = DTensor(tensor).placements();
  for (Placement& p : placements) {
    if (p.is_shard(0)) p = tensor.dim() > 1 ? Shard(1) : Replicate();
  }
  return placements == DTensor(tensor).placements() ? tensor : DTensor(tensor).redistribute(std::move(placements));
}

at::Tensor value_of(at::Tensor value, const files::StoredPiece& piece) {
  for (std::size_t d = 0; d < piece.target_segments.size(); ++d) {
    const Segment& range = piece.target_segments[d];
    const auto dim = static_cast<std::int64_t>(d);
    if (range.length < value.size(dim)) value = value.narrow(dim, range.offset, range.length);
  }
  if (piece.index >= 0) value = value.squeeze(0);
  return piece.transposed ? value.transpose(-1, -2) : value;
}

at::Tensor joined(const std::string& name, std::vector<Part>& parts) {
  const StateDictKeyRule::Range& only = parts[0].piece.stored_slice;
  if (parts.size() == 1 && only.begin == 0 && only.count < 0) return parts[0].value;
  const auto begin = [](const Part& part) { return part.piece.stored_slice.begin; };
  std::sort(parts.begin(), parts.end(), [&](const Part& a, const Part& b) { return begin(a) < begin(b); });
  std::vector<at::Tensor> values;
  std::int64_t end = 0;
  const std::int64_t dim = parts[0].piece.stored_slice.dim;
  for (const Part& part : parts) {
    TORCH_CHECK(begin(part) == end && part.piece.stored_slice.dim == dim, "map_state_dict_keys: the slices of '", name,
                "' do not cover it: one begins at ", begin(part), ", but index ", end, " was expected");
    end += part.value.size(dim);
    values.push_back(part.value);
  }
  return at::cat(values, dim);
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> map_state_dict_keys(
    const std::vector<std::pair<std::string, at::Tensor>>& tensors, const StateDictKeyMapping& names) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> order;
  std::map<std::string, std::vector<Part>> made;
  for (const auto& [name, tensor] : tensors) {
    const auto pieces = files::stored_pieces(name, tensor.sizes(), names);
    TORCH_CHECK(!pieces.empty(), "map_state_dict_keys: no row of the mapping matches '", name, "'");
    const at::Tensor source = pieces[0].index < 0 ? tensor : unstackable(tensor);
    for (const auto& piece : pieces) {
      auto& parts = made[piece.stored];
      if (parts.empty()) order.push_back(piece.stored);
      parts.push_back({piece, piece.renamed ? tensor : value_of(source.detach(), piece)});
    }
  }
  std::vector<std::pair<std::string, at::Tensor>> stored;
  for (const std::string& name : order) stored.emplace_back(name, joined(name, made.at(name)));
  return stored;
}

}  // namespace dtensor
