// Derived fields of a spec, its text, and the intern table. The table holds strong references, so that a spec that is
// dropped and requested again between two operators stays the same object. It consists of independently locked shards,
// since thread ranks intern concurrently. Each shard removes unused specs when its size has doubled.
#include "placement/spec.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "placement/dtype_name.h"
#include "placement/shard_map.h"

namespace dtensor {
namespace {

constexpr std::size_t kTableShards = 16;
constexpr std::size_t kSweepAt = 256;  // entries per table shard

at::DimVector derive_local_sizes(const MeshInfo& mesh, const Placements& placements, const at::DimVector& sizes) {
  const auto& shape = mesh.layout.shape;
  if (mesh.is_member) return local_sizes(sizes, placements, shape, mesh.coordinate);
  (void)local_sizes(sizes, placements, shape, Coordinate(shape.size(), 0));  // reports the same errors as a member
  return at::DimVector(std::max<std::size_t>(sizes.size(), 1), 0);
}

template <class Test>
bool any(const Placements& placements, Test test) {
  return std::any_of(placements.begin(), placements.end(), test);
}

struct SpecKey {
  const MeshRef& mesh;
  const Placements& placements;
  at::IntArrayRef sizes, strides;
  c10::ScalarType dtype;

  std::size_t hash() const {
    std::size_t h = c10::hash_combine(std::hash<const void*>()(mesh.get()), static_cast<std::size_t>(dtype));
    for (const Placement& p : placements) h = c10::hash_combine(h, p.hash());
    for (const std::int64_t n : sizes) h = c10::hash_combine(h, static_cast<std::size_t>(n));
    for (const std::int64_t n : strides) h = c10::hash_combine(h, static_cast<std::size_t>(n));
    return h;
  }
  bool equals(const TensorSpec& spec) const {
    return spec.mesh == mesh && spec.dtype == dtype && sizes.equals(spec.sizes) && strides.equals(spec.strides) &&
           spec.placements == placements;
  }
};

class TableShard {
 public:
  SpecPtr find_or_make(const SpecKey& key, std::size_t hash, Placements& placements) {
    std::vector<SpecPtr> dropped;  // outlives the lock: the last reference to a mesh may run arbitrary destructors
    std::lock_guard lock(mutex_);
    const auto [first, last] = specs_.equal_range(hash);
    for (auto it = first; it != last; ++it) {
      if (key.equals(*it->second)) return it->second;
    }
    if (specs_.size() >= sweep_at_) dropped = sweep();
    auto spec = c10::make_intrusive<TensorSpec>(key.mesh, std::move(placements), at::DimVector(key.sizes),
                                                at::DimVector(key.strides), key.dtype);
    return specs_.emplace(hash, SpecPtr(std::move(spec)))->second;
  }
  void drop_unused() {
    std::vector<SpecPtr> dropped;
    std::lock_guard lock(mutex_);
    dropped = sweep();
  }
  std::size_t size() {
    std::lock_guard lock(mutex_);
    return specs_.size();
  }

 private:
  // No other thread can take a second reference meanwhile: the table has the only one and the lock is held.
  std::vector<SpecPtr> sweep() {
    std::vector<SpecPtr> dropped;
    for (auto it = specs_.begin(); it != specs_.end();) {
      const bool unused = it->second.use_count() == 1;
      if (unused) dropped.push_back(std::move(it->second));
      it = unused ? specs_.erase(it) : std::next(it);
    }
    sweep_at_ = std::max(kSweepAt, 2 * specs_.size());
    return dropped;
  }

  std::mutex mutex_;
  std::unordered_multimap<std::size_t, SpecPtr> specs_;
  std::size_t sweep_at_ = kSweepAt;
};

// Never destroyed: tensors with static lifetime may be used during static destruction.
std::array<TableShard, kTableShards>& shards_of_table() {
  static auto* shards = new std::array<TableShard, kTableShards>();
  return *shards;
}

}  // namespace

const char* dtype_abbreviation(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return "f32";
    case c10::ScalarType::Double:
      return "f64";
    case c10::ScalarType::Half:
      return "f16";
    case c10::ScalarType::BFloat16:
      return "bf16";
    case c10::ScalarType::Long:
      return "i64";
    case c10::ScalarType::Int:
      return "i32";
    case c10::ScalarType::Short:
      return "i16";
    case c10::ScalarType::Char:
      return "i8";
    case c10::ScalarType::Byte:
      return "u8";
    case c10::ScalarType::Bool:
      return "bool";
    case c10::ScalarType::ComplexFloat:
      return "c64";
    case c10::ScalarType::ComplexDouble:
      return "c128";
    default:
      return c10::toString(dtype);
  }
}

TensorSpec::TensorSpec(MeshRef mesh_ref, Placements placements_given, at::DimVector global_sizes,
                       at::DimVector global_strides, c10::ScalarType scalar_type)
    : mesh(std::move(mesh_ref)),
      placements(std::move(placements_given)),
      sizes(std::move(global_sizes)),
      strides(std::move(global_strides)),
      dtype(scalar_type),
      local_sizes(derive_local_sizes(*mesh, placements, sizes)),
      has_partial(any(placements, [](const Placement& p) { return p.is_partial(); })),
      has_shard(any(placements, [](const Placement& p) { return p.is_shard(); })),
      has_storage(any(placements, [](const Placement& p) { return p.is_storage(); })) {
  TORCH_CHECK(sizes.size() == strides.size(), "sizes ", at::IntArrayRef(sizes), " and strides ",
              at::IntArrayRef(strides), " differ in length");
}

AxisMask TensorSpec::replicated_axes() const {
  return mesh->nontrivial_axes &
         axes_where(placements.size(), [&](std::size_t a) { return placements[a].is_replicate(); });
}

std::string TensorSpec::str() const {
  std::ostringstream out;
  out << dtype_abbreviation(dtype) << at::IntArrayRef(sizes) << " on " << at::IntArrayRef(mesh->layout.shape) << ' '
      << to_string(placements);
  return out.str();
}

SpecPtr intern_spec(const MeshRef& mesh, Placements placements, at::IntArrayRef sizes, at::IntArrayRef strides,
                    c10::ScalarType dtype) {
  placements = normalize_placements(std::move(placements), static_cast<std::int64_t>(sizes.size()), mesh->layout.shape);
  const SpecKey key{mesh, placements, sizes, strides, dtype};
  const std::size_t hash = key.hash();
  return shards_of_table()[(hash >> 7) % kTableShards].find_or_make(key, hash, placements);
}

SpecPtr with_placements(const TensorSpec& spec, Placements placements) {
  return intern_spec(spec.mesh, std::move(placements), spec.sizes, spec.strides, spec.dtype);
}

void drop_unused_specs() {
  for (TableShard& shard : shards_of_table()) shard.drop_unused();
}

std::size_t interned_spec_count() {
  std::size_t count = 0;
  for (TableShard& shard : shards_of_table()) count += shard.size();
  return count;
}

}  // namespace dtensor
