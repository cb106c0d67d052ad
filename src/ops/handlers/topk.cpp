// topk along a split dimension: each rank offers its own best min(k, part) values with their global indices; the best k
// of those n*k candidates are the result on every rank. The whole dimension travels only where equal values compete on
// the CPU, whose choice among them follows the whole row.
#include "ops/handlers/local_args.h"
#include "redistribute/execute.h"

namespace dtensor {
namespace {

struct TopkRequest {
  std::int64_t k, dim;
  bool largest, sorted;
};

TopkRequest request_of(const LocalArgs& args) {
  return {args.integer("k"), args.dim(), args.flag("largest"), args.flag("sorted")};
}

// Sizes differ per member: each offers at most what it holds, so nothing needs padding.
at::Tensor gather_offers(const Communicator& comm, const at::Tensor& own, std::int64_t wanted, std::int64_t dim,
                         const std::vector<Segments>& members) {
  std::vector<at::Tensor> received;
  auto sizes = own.sizes().vec();
  for (const auto& theirs : members) {
    sizes[dim] = std::min(wanted, total_length(theirs));
    received.push_back(at::empty(sizes, own.options()));
  }
  comm.all_gather(received, own.contiguous()).wait();
  return at::cat(received, dim);
}

// Of sorted values; NaN equals NaN.
bool has_ties(const at::Tensor& sorted, std::int64_t dim) {
  const auto n = sorted.size(dim) - 1;
  if (n <= 0) return false;
  const auto a = sorted.narrow(dim, 0, n), b = sorted.narrow(dim, 1, n);
  auto same = a.eq(b);
  if (sorted.is_floating_point()) same.logical_or_(a.isnan().logical_and_(b.isnan()));
  return same.any().item<bool>();
}

std::vector<at::Tensor> topk_of_whole(const TensorSpec& spec, const at::Tensor& own, const TopkRequest& r) {
  auto placements = spec.placements;
  for (auto& p : placements) {
    if (p.is_shard() && p.dim() == r.dim) p = Replicate();
  }
  const auto whole = redistribute_local(own, spec, placements);
  const auto [values, indices] = at::topk(whole, r.k, r.dim, r.largest, r.sorted);
  return {values, indices};
}

void topk(LocalCall& call) {
  const LocalArgs args(call);
  const TopkRequest r = request_of(args);
  const auto x = args.tensor("self");
  const auto* spec = args.spec("self");
  const AxisMask axes = shard_axes(spec, r.dim);
  if (axes == 0) {
    const auto [values, indices] = at::topk(x, r.k, r.dim, r.largest, r.sorted);
    return give(call, {values, indices});
  }
  // One more than asked for, so that a tie at the border shows.
  const std::int64_t wanted = std::min(r.k + 1, spec->sizes[r.dim]);
  auto [values, indices] = at::topk(x, std::min(wanted, x.size(r.dim)), r.dim, r.largest, true);
  indices = to_global(indices, own_segments(spec, r.dim, spec->sizes[r.dim]));
  const auto& comm = call.mesh.communicator(axes);
  const auto members = segments_of_members(*spec, r.dim, axes, comm.size());
  values = gather_offers(comm, values, wanted, r.dim, members);
  indices = gather_offers(comm, indices, wanted, r.dim, members);
  auto [best, where] = at::topk(values, wanted, r.dim, r.largest, true);
  if (x.is_cpu() && has_ties(best, r.dim)) return give(call, topk_of_whole(*spec, x, r));
  best = best.narrow(r.dim, 0, r.k).contiguous();
  give(call, {best, indices.gather(r.dim, where.narrow(r.dim, 0, r.k))});
}

}  // namespace

void register_topk_kernels() { register_local_kernel("topk_sharded", topk); }

}  // namespace dtensor
