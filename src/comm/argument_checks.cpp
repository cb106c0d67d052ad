// Checks the guarantees that backends rely on: defined regular tensors of one dtype on one supported device, outputs
// without overlap (internal, with each other or with inputs), and reductions that the dtype supports.
#include "comm/argument_checks.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <tuple>

#include "comm/error_messages.h"
#include "internal/bit_identical.h"
#include "internal/simulated.h"

namespace dtensor {
namespace {

bool same_view(const at::Tensor& a, const at::Tensor& b) {
  if (is_simulated(a) || is_simulated(b)) return a.is_same(b);
  return a.const_data_ptr() == b.const_data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

// The memory that a tensor certainly occupies: its full range if it has no gaps, else its first element. So columns of
// one matrix do not overlap, but the same view passed twice does.
struct Extent {
  const char *begin, *end;
  const at::Tensor* tensor;
  bool output;
};
using Extents = c10::SmallVector<Extent, 32>;

void add_extent(Extents& extents, const at::Tensor& tensor, bool output) {
  if (tensor.numel() == 0 || is_simulated(tensor)) return;
  const auto* begin = static_cast<const char*>(output ? tensor.mutable_data_ptr() : tensor.const_data_ptr());
  const bool dense = tensor.is_contiguous() || tensor.is_non_overlapping_and_dense();
  extents.push_back({begin, begin + (dense ? tensor.nbytes() : tensor.element_size()), &tensor, output});
}

[[noreturn]] void fail(const CollectiveCall& call, const Extent& a, const Extent& b) {
  TORCH_CHECK(!a.output || !b.output, to_string(call.kind), ": two outputs overlap, sizes ", a.tensor->sizes(), " and ",
              b.tensor->sizes());
  const auto& [output, input] = a.output ? std::tie(a, b) : std::tie(b, a);
  TORCH_CHECK(false, to_string(call.kind), ": an output overlaps an input, sizes ", output.tensor->sizes(), " and ",
              input.tensor->sizes());
}

}  // namespace

void check_input(const CommBackend& backend, const CollectiveCall& call, const at::Tensor& tensor,
                 at::ScalarType dtype) {
  TORCH_CHECK(tensor.defined(), to_string(call.kind), ": expected a defined tensor, got an undefined one");
  TORCH_CHECK(tensor.layout() == at::kStrided && tensor.has_storage(), to_string(call.kind),
              ": expected a regular strided tensor with storage; pass to_local() of a DTensor");
  TORCH_CHECK(tensor.scalar_type() == dtype, to_string(call.kind), ": expected tensors of one dtype, got ",
              c10::toString(dtype), " and ", c10::toString(tensor.scalar_type()));
  TORCH_CHECK(backend.supports(tensor.device().type()), to_string(call.kind), ": the ", backend.name(),
              " backend does not support tensors on ", tensor.device());
}

void check_output(const CommBackend& backend, const CollectiveCall& call, const at::Tensor& tensor,
                  at::ScalarType dtype) {
  check_input(backend, call, tensor, dtype);
  TORCH_CHECK(tensor.is_contiguous() || at::has_internal_overlap(tensor) != at::MemOverlap::Yes, to_string(call.kind),
              ": expected an output without internal overlap, got sizes ", tensor.sizes(), ", strides ",
              tensor.strides());
}

void check_one_device(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) {
  if (outputs.empty() && inputs.empty()) return;
  const auto device = (outputs.empty() ? inputs : outputs)[0].device();
  for (const auto list : {outputs, inputs}) {
    for (const auto& t : list) {
      TORCH_CHECK(t.device().type() == device.type(), to_string(call.kind),
                  ": expected tensors on one device type, got ", device, " and ", t.device());
    }
  }
}

void check_tensors(const CommBackend& backend, const CollectiveCall& call, at::TensorList outputs,
                   at::TensorList inputs) {
  for (const auto& input : inputs) check_input(backend, call, input, call.dtype);
  for (const auto& output : outputs) check_output(backend, call, output, call.dtype);
  check_one_device(call, outputs, inputs);
  const auto rank = static_cast<std::size_t>(backend.rank());
  check_no_overlap(call, outputs, inputs, call.kind == CollectiveKind::all_gather ? rank : outputs.size());
}

void check_no_overlap(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs, std::size_t own) {
  if (outputs.size() + inputs.size() < 2) return;
  Extents extents;
  for (const auto& output : outputs) add_extent(extents, output, true);
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const bool in_place = own + k < outputs.size() && same_view(outputs[own + k], inputs[k]);
    if (!in_place) add_extent(extents, inputs[k], false);
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  const Extent *output = nullptr, *input = nullptr;  // of the extents so far, those with the largest end
  for (const Extent& e : extents) {
    if (output != nullptr && e.begin < output->end) fail(call, *output, e);
    if (e.output && input != nullptr && e.begin < input->end) fail(call, *input, e);
    const Extent*& furthest = e.output ? output : input;
    if (furthest == nullptr || e.end > furthest->end) furthest = &e;
  }
}

void check_list(const CommBackend& backend, const CollectiveCall& call, at::TensorList list, const char* what) {
  TORCH_CHECK(static_cast<int>(list.size()) == backend.size(), to_string(call.kind), ": expected ", backend.size(), ' ',
              what, ", one per rank, got ", list.size());
}

void check_same_sizes(const CollectiveCall& call, const at::Tensor& mine_out, const at::Tensor& mine_in) {
  TORCH_CHECK(mine_out.sizes() == mine_in.sizes(), to_string(call.kind),
              ": expected equal sizes for this rank's own input and output, got ", mine_in.sizes(), " and ",
              mine_out.sizes());
}

void check_peer(const CommBackend& backend, const CollectiveCall& call) {
  TORCH_CHECK(call.peer >= 0 && call.peer < backend.size(), to_string(call.kind), ": expected a rank in [0, ",
              backend.size(), "), got ", call.peer);
}

void check_message(const CommBackend& backend, const CollectiveCall& call) {
  check_peer(backend, call);
  TORCH_CHECK(call.tag >= 0 && call.tag < Communicator::kMessageTags, to_string(call.kind), ": expected a tag in [0, ",
              Communicator::kMessageTags, "), got ", call.tag);
}

void check_reduction(const CollectiveCall& call) {
  const bool number = c10::isFloatingType(call.dtype) || c10::isComplexType(call.dtype);
  TORCH_CHECK((number && call.dtype != at::kComplexHalf) || c10::isIntegralType(call.dtype, /*includeBool=*/true),
              to_string(call.kind), ": reduction ", reduce_op_name(call.op), " does not support ",
              c10::toString(call.dtype));
  TORCH_CHECK(!c10::isFloat8Type(call.dtype), to_string(call.kind), ": reductions do not support ",
              c10::toString(call.dtype), "; cast first");
  TORCH_CHECK(call.op != ReduceOp::avg || number, to_string(call.kind), ": reduction avg does not support ",
              c10::toString(call.dtype), "; cast to a floating type first");
  const bool order = call.op == ReduceOp::max || call.op == ReduceOp::min;
  TORCH_CHECK(!order || !c10::isComplexType(call.dtype), to_string(call.kind), ": complex numbers do not support ",
              reduce_op_name(call.op));
  // Sums of floating-point shares depend on how ranks split them.
  if (number && !order) refuse_if_bit_identical(to_string(call.kind));
}

}  // namespace dtensor
