// topk along a split dimension: each rank offers its own best min(k, part) values with their global indices; the best k
// of those n*k candidates are the result on every rank. The whole dimension never travels.
#include "ops/handlers/local_args.h"

namespace dtensor {
namespace {

struct Request {
  std::int64_t k, dim;
  bool largest, sorted;
};

Request request_of(const LocalArgs& args) {
  return {args.integer("k"), args.dim(), args.flag("largest"), args.flag("sorted")};
}

// Sizes differ per member: each offers at most what it holds, so nothing needs padding.
at::Tensor gather_offers(const Communicator& comm, const at::Tensor& own, const Request& r,
                         const std::vector<Segments>& members) {
  std::vector<at::Tensor> received;
  auto sizes = own.sizes().vec();
  for (const auto& theirs : members) {
    sizes[r.dim] = std::min(r.k, total_length(theirs));
    received.push_back(at::empty(sizes, own.options()));
  }
  comm.all_gather(received, own.contiguous()).wait();
  return at::cat(received, r.dim);
}

void topk(LocalCall& call) {
  const LocalArgs args(call);
  const Request r = request_of(args);
  const auto x = args.tensor("self");
  const auto* spec = args.spec("self");
  const AxisMask axes = shard_axes(spec, r.dim);
  const std::int64_t offered = x.dim() == 0 ? r.k : std::min(r.k, x.size(r.dim));
  auto [values, indices] = at::topk(x, offered, r.dim, r.largest, r.sorted);
  if (axes == 0) return give(call, {values, indices});
  indices = to_global(indices, own_segments(spec, r.dim, spec->sizes[r.dim]));
  const auto& comm = call.mesh.communicator(axes);
  const auto members = segments_of_members(*spec, r.dim, axes, comm.size());
  values = gather_offers(comm, values, r, members);
  indices = gather_offers(comm, indices, r, members);
  const auto [best, where] = at::topk(values, r.k, r.dim, r.largest, r.sorted);
  give(call, {best, indices.gather(r.dim, where)});
}

}  // namespace

void register_topk_kernels() { register_local_kernel("topk_sharded", topk); }

}  // namespace dtensor
