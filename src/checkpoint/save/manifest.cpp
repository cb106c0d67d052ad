// Lists of tensors as JSON. A hash comparison detects equal lists; different ones are exchanged and merged.
#include "checkpoint/save/manifest.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/collective_errors.h"
#include "checkpoint/format/safetensors.h"
#include "dtensor/tensor.h"
#include "internal/materialized_views.h"

namespace dtensor::files {
namespace {

using Json = nlohmann::json;

void check(const std::string& name, const at::Tensor& tensor, Purpose purpose) {
  TORCH_CHECK(!name.empty() && name != "__metadata__", "'", name, "' is not a valid tensor name");
  TORCH_CHECK(tensor.defined(), "tensor '", name, "' is undefined");
  TORCH_CHECK(tensor.layout() == at::kStrided, "tensor '", name, "' is ", tensor.layout(), ", not dense");
  TORCH_CHECK(!tensor.is_meta(), "tensor '", name, "' is on the meta device and has no values");
  TORCH_CHECK(format_name(tensor.scalar_type()) != nullptr, "tensor '", name, "' has dtype ", tensor.scalar_type(),
              ", which safetensors does not support", tensor.is_complex() ? "; use at::view_as_real" : "");
  TORCH_CHECK(tensor.scalar_type() != at::ScalarType::Float4_e2m1fn_x2 || tensor.dim() > 0, "tensor '", name,
              "' is a 0-dim pair of F4 elements, which safetensors does not support");
  TORCH_CHECK(purpose == Purpose::save || !needs_reduction(tensor), "tensor '", name, "' is ",
              is_dtensor(tensor) ? DTensor(tensor).spec_str() : "", "; use a target without Partial placements");
}

// Each mesh once, as text and ranks. Mesh ranks are relative to the mesh's communicator, which may be a subgroup of the
// world, so meshes are distinguished by their world ranks.
struct MeshTable {
  Json json = Json::array();

  std::int64_t number(const at::Tensor& tensor) {
    if (!is_dtensor(tensor)) return -1;
    const DeviceMesh mesh = DTensor(tensor).mesh();
    const Communicator world = mesh.world();
    std::vector<std::int64_t> ranks;
    for (const std::int64_t rank : mesh.ranks()) ranks.push_back(world.ranks()[static_cast<std::size_t>(rank)]);
    const bool of_part = at::IntArrayRef(ranks) != mesh.ranks();
    const Json entry = {of_part ? c10::str(mesh.str(), " of world ranks ", at::IntArrayRef(ranks)) : mesh.str(), ranks};
    const auto position = std::find(json.begin(), json.end(), entry) - json.begin();
    if (position == std::ssize(json)) json.push_back(entry);
    return position;
  }
};

// An entry is [name, dtype, sizes, mesh index or -1, whether all ranks of the mesh must list it]. A further name of a
// tied tensor is [name, first name].
Json describe(const StateTensors& mine, Purpose purpose) {
  MeshTable meshes;
  Json list = Json::array();
  std::unordered_map<const c10::TensorImpl*, std::string> first;
  std::unordered_set<std::string> names;
  for (const auto& [name, tensor] : mine) {
    check(name, tensor, purpose);
    TORCH_CHECK(names.insert(name).second, "duplicate tensor name '", name, "'");
    const auto [position, fresh] = first.emplace(tensor.unsafeGetTensorImpl(), name);
    if (!fresh) {
      list.push_back({name, position->second});
      continue;
    }
    const bool by_all = purpose == Purpose::save || is_materialized_view(tensor);
    list.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec(), meshes.number(tensor), by_all});
  }
  return {{"meshes", meshes.json}, {"tensors", list}};
}

class Merger {
 public:
  explicit Merger(const Communicator& ranks) : ranks_(ranks) {}

  // `listing_ranks`: the ranks with this list.
  void add(const Json& given, const std::vector<int>& listing_ranks) {
    for (const Json& entry : given.at("tensors")) {
      const auto name = entry.at(0).get<std::string>();
      const auto [position, fresh] = seen_.try_emplace(name);
      Tensor& tensor = position->second;
      if (fresh) order_.push_back(name);
      if (fresh)
        tensor = {.alias = entry.size() == 2, .summary = summary(entry), .by = listing_ranks.front(), .entry = entry};
      TORCH_CHECK(tensor.summary == summary(entry), "tensor '", name, "' is ", tensor.summary, " on rank ", tensor.by,
                  " and ", summary(entry), " on rank ", listing_ranks.front());
      if (!tensor.alias) settle(tensor, entry, given.at("meshes"), listing_ranks);
    }
  }

  Manifest finish(CheckpointValues values) const {
    Manifest manifest{.tensors = {}, .aliases = {}, .values = std::move(values)};
    for (const std::string& name : order_) {
      const Tensor& t = seen_.at(name);
      if (t.alias) {
        manifest.aliases.push_back({name, t.entry.at(1).get<std::string>()});
        continue;
      }
      ManifestEntry listed{name, static_cast<at::ScalarType>(t.entry.at(1).get<int>()),
                           t.entry.at(2).get<std::vector<std::int64_t>>(),
                           static_cast<std::int64_t>(t.owner_groups.size())};
      for (std::size_t h = 0; h < t.owner_groups.size(); ++h) {
        if (t.entry.at(4).get<bool>()) check_complete(name, t.owner_groups[h]);
        const auto& listing_ranks = t.owner_groups[h].listing_ranks;
        const bool mine = std::find(listing_ranks.begin(), listing_ranks.end(), ranks_.rank()) != listing_ranks.end();
        if (mine) listed.owner_group = static_cast<std::int64_t>(h);
      }
      manifest.tensors.push_back(std::move(listed));
    }
    return manifest;
  }

 private:
  struct OwnerGroup {
    std::string where;                // the mesh, or the rank
    std::vector<std::int64_t> ranks;  // ranks of the mesh in the world
    std::vector<int> listing_ranks;   // ranks in the communicator
  };
  struct Tensor {
    bool alias = false;
    std::string summary;  // description that must be equal on all ranks
    int by = 0;
    Json entry = {};
    std::vector<OwnerGroup> owner_groups = {};
  };

  static std::string summary(const Json& entry) {
    if (entry.size() == 2) return "tied to " + entry[1].get<std::string>();
    return c10::str(static_cast<at::ScalarType>(entry[1].get<int>()), entry[2].dump(),
                    entry[3] == -1 ? ", regular" : ", a DTensor");
  }

  static void settle(Tensor& tensor, const Json& entry, const Json& meshes, const std::vector<int>& listing_ranks) {
    if (entry[3] == -1) {
      for (const int rank : listing_ranks) tensor.owner_groups.push_back({std::to_string(rank), {}, {rank}});
      return;
    }
    const Json& mesh = meshes.at(entry[3].get<std::size_t>());
    const auto where = mesh.at(0).get<std::string>();
    auto home = std::find_if(tensor.owner_groups.begin(), tensor.owner_groups.end(),
                             [&](const OwnerGroup& h) { return h.where == where; });
    if (home == tensor.owner_groups.end()) {
      home = tensor.owner_groups.insert(home, {where, mesh.at(1).get<std::vector<std::int64_t>>(), {}});
    }
    home->listing_ranks.insert(home->listing_ranks.end(), listing_ranks.begin(), listing_ranks.end());
  }

  void check_complete(const std::string& name, const OwnerGroup& home) const {
    for (const std::int64_t world_rank : home.ranks) {
      const auto& all = ranks_.ranks();
      const auto rank = std::find(all.begin(), all.end(), world_rank) - all.begin();
      TORCH_CHECK(rank < ranks_.size(), "tensor '", name, "' is on ", home.where, ", but world rank ", world_rank,
                  " of that mesh does not participate");
      const bool lists_it = std::find(home.listing_ranks.begin(), home.listing_ranks.end(), static_cast<int>(rank)) !=
                            home.listing_ranks.end();
      TORCH_CHECK(lists_it, "tensor '", name, "' is on ", home.where, ", but rank ", rank, " does not list it there");
    }
  }

  const Communicator& ranks_;
  std::vector<std::string> order_;
  std::unordered_map<std::string, Tensor> seen_;
};

bool all_equal(const Communicator& ranks, const std::string& text) {
  std::vector<std::int64_t> low{static_cast<std::int64_t>(std::hash<std::string>{}(text)),
                                static_cast<std::int64_t>(text.size())};
  std::vector<std::int64_t> high = low;
  reduce_numbers(ranks, low, ReduceOp::min);
  reduce_numbers(ranks, high, ReduceOp::max);
  return low == high;
}

// Merges the values of all ranks. Values of a name must be equal.
CheckpointValues merge_values(const Communicator& ranks, const std::string& own) {
  Json merged = Json::object();
  std::unordered_map<std::string, std::size_t> first;
  const auto texts = all_gather_strings(ranks, own);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Json given = Json::parse(texts[rank]);
    for (const auto& [name, value] : given.items()) {
      const auto [by, fresh] = first.emplace(name, rank);
      if (fresh) merged[name] = value;
      TORCH_CHECK(merged[name].dump() == value.dump(), "the values differ between ranks: '", name, "' is ",
                  merged[name].dump(), " on rank ", by->second, " and ", value.dump(), " on rank ", rank, kPerRankHint);
    }
  }
  return parse_values(merged.dump());
}

Manifest merge(const Communicator& ranks, const Json& own, const CheckpointValues& values) {
  Merger merger(ranks);
  const std::string text = own.dump(), text_of_values = values_text(values);
  if (all_equal(ranks, text + text_of_values)) {
    std::vector<int> all(static_cast<std::size_t>(ranks.size()));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
    merger.add(own, all);
    return merger.finish(values);
  }
  auto merged = merge_values(ranks, text_of_values);
  const auto texts = all_gather_strings(ranks, text);
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    merger.add(Json::parse(texts[rank]), {static_cast<int>(rank)});
  return merger.finish(std::move(merged));
}

}  // namespace

bool needs_reduction(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return false;
  const Placements& placements = DTensor(tensor).placements();
  return std::any_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_partial(); });
}

Manifest build_manifest(const StateTensors& mine, const Communicator& ranks, Purpose purpose, const std::string& what,
                        const CheckpointValues& values) {
  Json own;
  run_on_all(ranks, what, [&] {
    own = describe(mine, purpose);
    own.dump();  // throws for names that are not UTF-8
    values_text(values);
  });
  try {
    return merge(ranks, own, values);
  } catch (const c10::Error& error) {  // same on every rank
    TORCH_CHECK(false, what, ": ", error.what_without_backtrace());
  }
}

}  // namespace dtensor::files
