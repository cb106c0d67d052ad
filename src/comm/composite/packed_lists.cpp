// Collectives on lists of tensors, for backends that move one tensor per member: the lists are packed into one tensor
// and unpacked after the collective.
#include "comm/composite/chained_work.h"
#include "comm/memory/packed.h"
#include "dtensor/comm_backend.h"
#include "internal/aten_scopes.h"

namespace dtensor {
namespace {

// A copy to make after the collective.
struct Unpacking {
  std::vector<at::Tensor> to;
  Packed from;
};

Work unpacking(const CommBackend& backend, Work work, std::vector<Unpacking> rest) {
  auto unpack = [rest = std::move(rest)] {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (const auto& [to, from] : rest) from.unpack(to);
  };
  return with_continuation(std::move(work), std::move(unpack), backend.shared_record());
}

}  // namespace

Work CommBackend::all_gather_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) {
  const auto n = inputs.size();
  if (n == 1) return all_gather(call, outputs, inputs[0]);
  const LocalBelowAutogradGuard scope;
  const auto mine = Packed::bytes(inputs);
  mine.fill(inputs);
  CollectiveCall flat_call = call;
  flat_call.dtype = at::kByte;
  std::vector<at::Tensor> flats;
  std::vector<Unpacking> rest;
  for (int i = 0; i < size(); ++i) {
    const auto theirs = outputs.slice(static_cast<std::size_t>(i) * n, n);
    if (i == rank()) {
      for (std::size_t k = 0; k < n; ++k) copy_on_device(theirs[k], inputs[k]);
      flats.push_back(mine.flat);  // already in place
      continue;
    }
    rest.push_back({theirs.vec(), Packed::bytes(theirs)});
    flats.push_back(rest.back().from.flat);
  }
  return unpacking(*this, all_gather(flat_call, flats, mine.flat), std::move(rest));
}

Work CommBackend::reduce_scatter_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) {
  const auto n = outputs.size();
  if (n == 1) return reduce_scatter(call, outputs[0], inputs);
  const LocalBelowAutogradGuard scope;
  std::vector<at::Tensor> flats;
  for (int i = 0; i < size(); ++i) {
    const auto theirs = inputs.slice(static_cast<std::size_t>(i) * n, n);
    const auto packed = Packed::numbers(theirs);
    packed.fill(theirs);
    flats.push_back(packed.flat);
  }
  const auto mine = Packed::numbers(outputs);
  return unpacking(*this, reduce_scatter(call, mine.flat, flats), {{outputs.vec(), mine}});
}

Work CommBackend::all_reduce_list(const CollectiveCall& call, at::TensorList tensors) {
  if (tensors.size() == 1) return all_reduce(call, tensors[0]);
  const LocalBelowAutogradGuard scope;
  const auto packed = Packed::numbers(tensors);
  packed.fill(tensors);
  return unpacking(*this, all_reduce(call, packed.flat), {{tensors.vec(), packed}});
}

}  // namespace dtensor
