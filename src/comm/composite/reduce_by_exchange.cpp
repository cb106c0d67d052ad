// Each rank reduces one part of the values; an all_reduce then gathers the parts.
#include "comm/composite/reduce_by_exchange.h"

#include <ATen/ATen.h>

#include "comm/memory/reduce/reduce_tensors.h"
#include "internal/aten_scopes.h"

namespace dtensor {
namespace {

CollectiveCall as(CollectiveCall call, CollectiveKind kind) {
  call.kind = kind;
  return call;
}

// Exchanges the parts and reduces those for this rank.
at::Tensor reduced_part(CommBackend& backend, const CollectiveCall& call, at::TensorList parts, c10::Device device) {
  const at::Tensor& own = parts[static_cast<std::size_t>(backend.rank())];
  std::vector<at::Tensor> of_all;
  for (int i = 0; i < backend.size(); ++i) of_all.push_back(at::empty(own.sizes(), own.options()));
  backend.all_to_all(as(call, CollectiveKind::all_to_all), of_all, parts).wait();
  return reduce_tensors(device, of_all, call.op);
}

}  // namespace

void reduce_scatter_via_all_to_all(CommBackend& backend, const CollectiveCall& call, const at::Tensor& output,
                                   at::TensorList inputs, c10::Device device) {
  const LocalBelowAutogradGuard regular;
  std::vector<at::Tensor> there;
  for (const at::Tensor& input : inputs) there.push_back(input.to(device));
  output.copy_(reduced_part(backend, call, there, device));
}

void all_reduce_via_all_to_all(CommBackend& backend, const CollectiveCall& call, const at::Tensor& tensor,
                               c10::Device device) {
  const LocalBelowAutogradGuard regular;
  const at::Tensor flat = tensor.to(device).contiguous().view(-1);
  const at::Tensor part = reduced_part(backend, call, flat.tensor_split(backend.size()), device);
  const at::Tensor full = at::empty_like(flat);
  backend.all_gather(as(call, CollectiveKind::all_gather), full.tensor_split(backend.size()), part).wait();
  tensor.copy_(full.view(tensor.sizes()));
}

}  // namespace dtensor
