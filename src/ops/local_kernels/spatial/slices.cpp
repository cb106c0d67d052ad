// Slices, their gradients, splits and concatenations along a sharded dimension. A result is sharded by its own size, so
// the rows next to the boundaries belong to another rank than in the operand. One exchange moves these rows.
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/irange.h>

#include "ops/local_kernels/exchanged_pieces.h"
#include "redistribute/execute.h"

namespace dtensor {
namespace {

Segments shifted(const Segments& rows, std::int64_t offset) {
  Segments all;
  for (const Segment& s : rows) all.push_back({s.offset + offset, s.length});
  return all;
}

// The ranges of several tensors in their concatenation along a dimension, for each rank.
class ConcatenatedRows {
 public:
  ConcatenatedRows(std::int64_t dim, AxisMask axes) : dim_(dim), axes_(axes) {}

  void append(const TensorSpec& spec) {
    const auto rows = segments_of_ranks(spec, dim_, axes_);
    of_ranks_.resize(rows.size());
    for (const auto r : c10::irange(rows.size())) {
      for (const Segment& s : shifted(rows[r], length_)) append_range(of_ranks_[r], s);
    }
    length_ += spec.sizes[static_cast<std::size_t>(dim_)];
  }
  const std::vector<Segments>& of_ranks() const { return of_ranks_; }

 private:
  std::int64_t dim_;
  AxisMask axes_;
  std::int64_t length_ = 0;
  std::vector<Segments> of_ranks_;
};

// The arguments of slice, slice_backward, slice_scatter and narrow_copy.
Slice slice_of(const LocalArgs& args, const TensorSpec& full, const TensorSpec& part) {
  const auto dim = c10::maybe_wrap_dim(args.integer("dim"), full.dim());
  const auto n = full.sizes[static_cast<std::size_t>(dim)];
  auto start = args.value("start").isNone() ? 0 : args.integer("start");
  if (start < 0) start += n;
  const auto step = args.has("step") ? args.integer("step") : 1;
  return {dim, std::clamp(start, std::int64_t{0}, n), step, part.sizes[static_cast<std::size_t>(dim)]};
}

void slice_split(LocalCall& call) {
  const LocalArgs args(call);
  const TensorSpec &full = *args.spec("self"), &part = *call.outputs[0];
  const Slice slice = slice_of(args, full, part);
  const AxisMask axes = shard_axes(&part, slice.dim);
  const auto& comm = call.mesh.communicator(axes);
  const auto held = segments_of_ranks(full, slice.dim, axes);
  const auto local = resolve_conj_and_neg(args.tensor("self"));
  const auto rows = slice.rows_of(local, held[static_cast<std::size_t>(comm.rank())]);
  const HaloExchange exchange(comm, slice.dim, slice.within(held), segments_of_ranks(part, slice.dim, axes));
  const auto result = exchange.fetch_halo(rows);
  set_results(call, {result.is_alias_of(local) ? result.clone() : result});
}

// Writes the rows of a slice to this rank's part of the full tensor.
void write_slice(const LocalCall& call, const char* source, const at::Tensor& target) {
  const LocalArgs args(call);
  const TensorSpec &full = *call.outputs[0], &part = *args.spec(source);
  const Slice slice = slice_of(args, full, part);
  const AxisMask axes = shard_axes(&part, slice.dim);
  const auto& comm = call.mesh.communicator(axes);
  const auto wanted = segments_of_ranks(full, slice.dim, axes);
  const HaloExchange exchange(comm, slice.dim, segments_of_ranks(part, slice.dim, axes), slice.within(wanted));
  const auto rows = exchange.fetch_halo(resolve_conj_and_neg(args.tensor(source)));
  std::int64_t first = 0;
  for (const at::Tensor& view : slice.views_of(target, wanted[static_cast<std::size_t>(comm.rank())])) {
    view.copy_(rows.narrow(slice.dim, first, view.size(slice.dim)));
    first += view.size(slice.dim);
  }
}

void slice_split_backward(LocalCall& call) {
  const auto grad = at::zeros(call.outputs[0]->local_sizes, LocalArgs(call).tensor("grad_output").options());
  write_slice(call, "grad_output", grad);
  set_results(call, {grad});
}

void slice_scatter_split(LocalCall& call) {
  const auto result = resolve_conj_and_neg(LocalArgs(call).tensor("self")).clone();
  write_slice(call, "src", result);
  set_results(call, {result});
}

// Parts follow one another in the full tensor, so their rows are one list of ranges too.
void split_split(LocalCall& call) {
  const LocalArgs args(call);
  const auto dim = args.dim();
  const TensorSpec& full = *args.spec("self");
  const AxisMask axes = shard_axes(&full, dim);
  ConcatenatedRows parts(dim, axes);
  std::vector<std::int64_t> lengths;
  for (const SpecPtr& part : call.outputs) {
    parts.append(*part);
    lengths.push_back(part->local_sizes[static_cast<std::size_t>(dim)]);
  }
  const HaloExchange exchange(call.mesh.communicator(axes), dim, segments_of_ranks(full, dim, axes), parts.of_ranks());
  const auto local = resolve_conj_and_neg(args.tensor("self"));
  const auto rows = exchange.fetch_halo(local);
  const auto own = rows.is_alias_of(local) ? rows.clone() : rows;
  torch::jit::drop(call.stack, call.info.args.size());
  call.stack.emplace_back(own.split_with_sizes(lengths, dim));
}

void cat_split(LocalCall& call) {
  const LocalArgs args(call);
  const TensorSpec& full = *call.outputs[0];
  const auto dim = c10::maybe_wrap_dim(args.integer("dim"), full.dim());
  const AxisMask axes = shard_axes(&full, dim);
  const auto tensors = args.value("tensors").toTensorVector();
  ConcatenatedRows parts(dim, axes);
  for (const auto i : c10::irange(tensors.size())) {
    if (call.inputs[i]->dim() == full.dim()) parts.append(*call.inputs[i]);
  }
  const HaloExchange exchange(call.mesh.communicator(axes), dim, parts.of_ranks(), segments_of_ranks(full, dim, axes));
  set_results(call, {exchange.fetch_halo(at::cat(tensors, dim))});
}

}  // namespace

void add_slice_kernels(LocalKernels& kernels) {
  kernels.emplace("slice_split", slice_split);
  kernels.emplace("slice_split_backward", slice_split_backward);
  kernels.emplace("slice_scatter_split", slice_scatter_split);
  kernels.emplace("split_split", split_split);
  kernels.emplace("cat_split", cat_split);
}

}  // namespace dtensor
