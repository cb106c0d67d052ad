// Packs the parts of Partial tensors into one buffer for each kind and reduces that.
#include "optim/partials.h"

#include <ATen/ATen.h>

#include "dtensor/tensor.h"

namespace dtensor::optim {
namespace {

// Tensors that travel together.
struct Pack {
  DeviceMesh mesh;
  std::vector<std::pair<std::int64_t, ReduceOp>> axes;  // Partial ones
  at::ScalarType dtype;
  std::vector<std::size_t> members;
};

std::vector<std::pair<std::int64_t, ReduceOp>> partial_axes(const DTensor& tensor) {
  std::vector<std::pair<std::int64_t, ReduceOp>> axes;
  const Placements& placements = tensor.placements();
  for (std::size_t a = 0; a < placements.size(); ++a) {
    if (placements[a].is_partial()) axes.emplace_back(static_cast<std::int64_t>(a), placements[a].reduce_op());
  }
  return axes;
}

std::vector<Pack> pack(const std::vector<at::Tensor>& tensors) {
  std::vector<Pack> packs;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!is_dtensor(tensors[i])) continue;
    const DTensor tensor(tensors[i]);
    auto axes = partial_axes(tensor);
    if (axes.empty() || !tensor.mesh().is_member()) continue;
    const auto same = [&](const Pack& p) {
      return p.mesh == tensor.mesh() && p.axes == axes && p.dtype == tensor.scalar_type();
    };
    auto found = std::find_if(packs.begin(), packs.end(), same);
    if (found == packs.end()) {
      found = packs.insert(packs.end(), Pack{tensor.mesh(), std::move(axes), tensor.scalar_type(), {}});
    }
    found->members.push_back(i);
  }
  return packs;
}

at::Tensor rewrap(const DTensor& tensor, const at::Tensor& local) {
  Placements placements = tensor.placements();
  for (Placement& p : placements) p = p.is_partial() ? Replicate() : p;
  return DTensor::from_local(local, tensor.mesh(), std::move(placements), tensor.sizes(), tensor.strides());
}

void reduce(const Pack& pack, std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const std::size_t i : pack.members) flat.push_back(DTensor(tensors[i]).to_local().reshape({-1}));
  const at::Tensor all = at::cat(flat);
  for (const auto& [axis, op] : pack.axes) pack.mesh.communicator(axis).all_reduce(all, op).wait();
  std::int64_t offset = 0;
  for (std::size_t k = 0; k < flat.size(); ++k) {
    const DTensor tensor(tensors[pack.members[k]]);
    const at::Tensor local = all.narrow(0, offset, flat[k].numel()).view(tensor.to_local().sizes());
    offset += flat[k].numel();
    tensors[pack.members[k]] = rewrap(tensor, local);
  }
}

}  // namespace

std::vector<at::Tensor> without_partials(std::vector<at::Tensor> tensors) {
  const at::NoGradGuard no_grad;
  for (const Pack& p : pack(tensors)) reduce(p, tensors);
  return tensors;
}

}  // namespace dtensor::optim
