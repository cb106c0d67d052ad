// Finds parameters on other meshes, and gives them units there.
#include "parallel/fsdp/other_meshes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "parallel/fsdp/unit.h"

namespace dtensor::fsdp {
namespace {

// Options for parameters on a mesh of their own: sharded along the axis that already shards their storage, otherwise
// along an axis that replicates them. No value if there is no such axis: they keep their placements.
std::optional<FsdpOptions> options_on_other_mesh(const DeviceMesh& mesh, const DTensor& parameter,
                                                 FsdpOptions options) {
  const auto& placements = parameter.placements();
  const auto& names = mesh.names();
  const auto axis_of = [&](const auto& wanted) {
    for (std::size_t a = 0; a < placements.size(); ++a) {
      if (wanted(a)) return static_cast<std::int64_t>(a);
    }
    return std::int64_t{-1};
  };
  auto axis = axis_of([&](auto a) { return placements[a].is_storage(); });
  if (axis < 0) {
    axis = axis_of([&](auto a) {
      return placements[a].is_replicate() &&
             (mesh.ndim() == 1 || (!names.empty() && names[a] == options.shard_axes[0]));
    });
  }
  if (axis < 0) return std::nullopt;
  options.shard_axes.resize(1);  // the others are axes of the other mesh
  if (!names.empty()) options.shard_axes[0] = names[static_cast<std::size_t>(axis)];
  if (const auto* given = std::get_if<std::int64_t>(&options.reshard_after_forward)) {
    const auto post_forward_ranks = *given, fitting = std::gcd(post_forward_ranks, mesh.size(axis));
    options.reshard_after_forward = true;  // as many of the neighbors as divide the ranks of this axis
    if (post_forward_ranks == 1 || fitting > 1) options.reshard_after_forward = fitting;
  }
  return options;
}

}  // namespace

std::vector<OnMesh> find_on_other_meshes(const NamedTensors& parameters, const DeviceMesh& mesh) {
  std::vector<OnMesh> groups;
  std::map<std::int64_t, int> held;  // number of groups per rank
  for (const auto rank : mesh.ranks()) held[rank] = 0;
  for (const auto& [name, slot] : parameters) {
    if (!slot->defined() || !is_dtensor(*slot)) continue;
    const auto own = DTensor(*slot).mesh();
    if (!has_own_mesh(own, mesh)) continue;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == own; });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {own, {}});
      if (own.size() < mesh.size()) {
        for (const auto rank : own.ranks()) ++held[rank];
      }
    }
    group->second.emplace_back(name, slot);
  }
  const auto most = held.begin()->second;
  const bool even = std::all_of(held.begin(), held.end(), [&](const auto& h) { return h.second == most; });
  if (!even) std::erase_if(groups, [&](const auto& g) { return g.first.size() < mesh.size(); });
  return groups;
}

void shard_on_other_meshes(const std::vector<OnMesh>& groups, const FsdpOptions& options) {
  for (const auto& [own, list] : groups) {
    NamedTensors fresh;
    for (const auto& item : list) {
      if (find_unit_parameter(*item.second).unit == nullptr) fresh.push_back(item);
    }
    if (fresh.empty()) continue;
    const auto there = options_on_other_mesh(own, DTensor(*fresh.front().second), options);
    if (!there) continue;
    fully_shard(fresh, own, *there);
    find_unit_parameter(*fresh.front().second).unit->on_other_mesh = true;
  }
}

bool holds(const std::vector<OnMesh>& groups, const at::Tensor& tensor) {
  return std::any_of(groups.begin(), groups.end(), [&](const auto& group) {
    return std::any_of(group.second.begin(), group.second.end(),
                       [&](const auto& item) { return item.second->is_same(tensor); });
  });
}

}  // namespace dtensor::fsdp
