// What every backend may rely on: defined plain tensors of one dtype on one supported device, outputs that do not
// overlap themselves, each other or an input, reductions that mean something for their dtype.
#include "comm/check.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>

#include "comm/describe.h"

namespace dtensor {
namespace {

void check_tensor(const CommBackend& backend, const CollectiveCall& call, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), to_string(call.kind), ": an undefined tensor");
  TORCH_CHECK(tensor.layout() == at::kStrided && tensor.has_storage(), to_string(call.kind),
              ": needs a plain strided tensor with storage; give a DTensor's to_local()");
  TORCH_CHECK(tensor.scalar_type() == call.dtype, to_string(call.kind), ": tensors of different dtypes, ",
              c10::toString(call.dtype), " and ", c10::toString(tensor.scalar_type()));
  TORCH_CHECK(backend.supports(tensor.device().type()), to_string(call.kind), ": the ", backend.name(),
              " backend does not move tensors on ", tensor.device());
}

bool same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.data_ptr() == b.data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

// The memory that a tensor has for certain: all of it where it has no gaps, else its first element, so that columns of
// one matrix are told apart, and one view that comes twice is seen.
struct Extent {
  const char *begin, *end;
  const at::Tensor* tensor;
};

Extent extent_of(const at::Tensor& tensor) {
  const auto* begin = static_cast<const char*>(tensor.data_ptr());
  const bool dense = tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense_or_false();
  return {begin, begin + (dense ? tensor.nbytes() : tensor.element_size()), &tensor};
}

// `in_place`: the input may be that output itself.
void check_overlap(const CollectiveCall& call, const at::Tensor& output, const at::Tensor& input, bool in_place) {
  if (!output.is_alias_of(input) || output.numel() == 0 || input.numel() == 0) return;
  if (in_place && same_view(output, input)) return;
  const Extent written = extent_of(output), read = extent_of(input);
  TORCH_CHECK(written.end <= read.begin || read.end <= written.begin, to_string(call.kind),
              ": an output overlaps an input, sizes ", output.sizes(), " and ", input.sizes());
}

}  // namespace

void check_disjoint(const CollectiveCall& call, at::TensorList outputs) {
  if (outputs.size() < 2) return;
  c10::SmallVector<Extent, 16> extents;
  for (const auto& output : outputs) {
    if (output.numel() > 0) extents.push_back(extent_of(output));
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    TORCH_CHECK(extents[i - 1].end <= extents[i].begin, to_string(call.kind), ": two outputs overlap, sizes ",
                extents[i - 1].tensor->sizes(), " and ", extents[i].tensor->sizes());
  }
}

void check_tensors(const CommBackend& backend, const CollectiveCall& call, at::TensorList outputs,
                   at::TensorList inputs) {
  for (const auto& input : inputs) check_tensor(backend, call, input);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& output = outputs[i];
    check_tensor(backend, call, output);
    TORCH_CHECK(at::has_internal_overlap(output) != at::MemOverlap::Yes, to_string(call.kind),
                ": an output whose elements share memory, sizes ", output.sizes(), ", strides ", output.strides());
    const bool mine = call.kind == CollectiveKind::all_gather && static_cast<int>(i) == backend.rank();
    for (const auto& input : inputs) check_overlap(call, output, input, mine);
  }
  check_disjoint(call, outputs);
}

void check_apart(const CommBackend& backend, const CollectiveCall& call, at::TensorList all, at::TensorList one) {
  const auto storage_of = [](const at::Tensor& t) { return t.storage().unsafeGetStorageImpl(); };
  c10::SmallVector<const c10::StorageImpl*, 16> storages;
  for (const auto& t : one) storages.push_back(storage_of(t));
  std::sort(storages.begin(), storages.end());
  const std::size_t first = static_cast<std::size_t>(backend.rank()) * one.size();
  const bool gathers = call.kind == CollectiveKind::all_gather;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!std::binary_search(storages.begin(), storages.end(), storage_of(all[i]))) continue;
    for (std::size_t k = 0; k < one.size(); ++k) {
      check_overlap(call, gathers ? all[i] : one[k], gathers ? one[k] : all[i], gathers && i == first + k);
    }
  }
}

void check_list(const CommBackend& backend, const CollectiveCall& call, at::TensorList list, const char* what) {
  TORCH_CHECK(static_cast<int>(list.size()) == backend.size(), to_string(call.kind), ": ", list.size(), ' ', what,
              " for ", backend.size(), " ranks");
}

void check_same_sizes(const CollectiveCall& call, const at::Tensor& mine_out, const at::Tensor& mine_in) {
  TORCH_CHECK(mine_out.sizes() == mine_in.sizes(), to_string(call.kind), ": this rank's own part goes out with sizes ",
              mine_in.sizes(), " and comes in with ", mine_out.sizes());
}

void check_peer(const CommBackend& backend, const CollectiveCall& call) {
  TORCH_CHECK(call.peer >= 0 && call.peer < backend.size(), to_string(call.kind), ": rank ", call.peer,
              " of a communicator of ", backend.size());
}

void check_message(const CommBackend& backend, const CollectiveCall& call) {
  check_peer(backend, call);
  TORCH_CHECK(call.tag >= 0 && call.tag < kMessageTags, to_string(call.kind), ": tag ", call.tag, " is not in [0, ",
              kMessageTags, ")");
}

void check_reduction(const CollectiveCall& call) {
  const bool number = c10::isFloatingType(call.dtype) || c10::isComplexType(call.dtype);
  TORCH_CHECK((number && call.dtype != at::kComplexHalf) || c10::isIntegralType(call.dtype, /*includeBool=*/true),
              to_string(call.kind), ": no ", reduce_op_name(call.op), " for ", c10::toString(call.dtype));
  TORCH_CHECK(!c10::isFloat8Type(call.dtype), to_string(call.kind), ": no reduction of ", c10::toString(call.dtype),
              "; cast first");
  TORCH_CHECK(call.op != ReduceOp::avg || number, to_string(call.kind), ": no avg for ", c10::toString(call.dtype),
              "; cast to a floating type first");
  const bool order = call.op == ReduceOp::max || call.op == ReduceOp::min;
  TORCH_CHECK(!order || !c10::isComplexType(call.dtype), to_string(call.kind), ": complex numbers have no ",
              reduce_op_name(call.op));
}

}  // namespace dtensor
