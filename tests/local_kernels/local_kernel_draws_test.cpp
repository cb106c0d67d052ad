// Random meshes, sizes and placements for the tests of local kernels.
#include "local_kernels/local_kernel_fixture.h"

namespace dtensor::testing {

std::int64_t pick(std::int64_t low, std::int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::int64_t>(low, high + 1));
}

std::vector<std::int64_t> any_mesh() {
  at::manual_seed(static_cast<std::uint64_t>(pick(0, 1 << 30)));  // makes failing cases reproducible
  const std::vector<std::vector<std::int64_t>> meshes{{1}, {2}, {3}, {2, 2}, {2, 1}};
  return meshes[pick(0, 4)];
}

std::vector<std::int64_t> any_sizes(int min_dims, int max_dims, int smallest) {
  std::vector<std::int64_t> sizes(pick(min_dims, max_dims));
  for (auto& n : sizes) n = pick(smallest, 5);
  return sizes;
}

Placements any_shards(const std::vector<std::int64_t>& mesh, const std::vector<std::int64_t>& dims) {
  Placements placements(mesh.size());
  for (auto& p : placements) {
    if (dims.empty() || pick(0, 3) == 0) continue;
    const auto dim = dims[pick(0, static_cast<std::int64_t>(dims.size()) - 1)];
    const auto kind = pick(0, 5);
    p = kind == 0 ? StridedShard(dim, 2) : kind == 1 ? ZigzagShard(dim) : Shard(dim);
  }
  return placements;
}

at::ScalarType any_float() { return *rc::gen::element(at::kFloat, at::kDouble, at::kBFloat16); }

Placements reduced(const Placements& in, const std::vector<std::int64_t>& dims, bool keepdim, bool full, ReduceOp op) {
  const std::set<std::int64_t> gone(dims.begin(), dims.end());
  Placements out = in;
  for (auto& p : out) {
    if (!p.is_shard()) continue;
    if (gone.count(p.dim())) {
      p = full ? Replicate() : Partial(op);
    } else if (!keepdim) {
      p = p.with_dim(p.dim() - std::distance(gone.begin(), gone.lower_bound(p.dim())));
    }
  }
  return out;
}

std::vector<std::int64_t> all_dims(std::int64_t ndim) {
  std::vector<std::int64_t> dims(ndim);
  for (std::int64_t d = 0; d < ndim; ++d) dims[d] = d;
  return dims;
}

Placements replicated(const std::vector<std::int64_t>& mesh) { return Placements(mesh.size()); }

Placements replace_dim(const Placements& in, std::int64_t dim, const Placement& by) {
  Placements out = in;
  for (auto& p : out) {
    if (p.is_shard(dim)) p = by;
  }
  return out;
}

}  // namespace dtensor::testing
