// Embedding tables whose rows are split. Forward: a rank looks up the rows it holds and gives zeros for the others, so
// the output is Partial(sum); no mask is kept between calls (PITFALLS D1). Backward: a rank builds the gradient of its
// own rows only. Indices and padding_idx are global throughout.
#include "ops/handlers/local_args.h"

namespace dtensor {
namespace {

void embedding(LocalCall& call) {
  const LocalArgs args(call);
  const auto weight = args.tensor("weight"), indices = args.tensor("indices");
  const std::int64_t rows = args.global_sizes("weight")[0];
  check_indices(indices, rows, "embedding: index");
  const auto index = to_own(indices, own_segments(args.spec("weight"), 0, rows));
  auto sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  auto result = weight.size(0) == 0 ? at::zeros(sizes, weight.options())
                                    : weight.index_select(0, index.local.reshape({-1})).view(sizes);
  result.masked_fill_(index.own.logical_not().unsqueeze(-1), 0);
  give(call, {reduce_contribution(call, result, ReduceOp::sum, shard_axes(args.spec("weight"), 0))});
}

// Divides each row by how often its index occurs in the whole batch.
void scale_by_frequency(const LocalCall& call, const LocalArgs& args, const at::Tensor& rows, at::Tensor grad) {
  auto counts = at::bincount(rows.reshape({-1}), {}, grad.size(0) + 1).narrow(0, 0, grad.size(0)).contiguous();
  counts = all_reduce(call.mesh, counts, ReduceOp::sum, shard_axes(args.spec("indices")));
  grad.div_(counts.clamp_min_(1).unsqueeze(1));
}

// Rows that are not ours (and the padding row) go to one row past the end, which ATen skips as its padding row.
void embedding_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto grad = args.tensor("grad_output"), indices = args.tensor("indices");
  const auto& out = *call.outputs[0];
  const auto segments = own_segments(&out, 0, out.sizes[0]);
  const std::int64_t own_rows = total_length(segments);
  const auto index = to_own(indices, segments);
  auto dropped = index.own.logical_not();
  if (args.integer("padding_idx") >= 0) dropped.logical_or_(indices.eq(args.integer("padding_idx")));
  const auto rows = index.local.masked_fill(dropped, own_rows);
  auto result = at::embedding_dense_backward(grad, rows, own_rows + 1, own_rows, false).narrow(0, 0, own_rows);
  if (args.flag("scale_grad_by_freq")) scale_by_frequency(call, args, rows, result);
  give(call, {reduce_contribution(call, result, ReduceOp::sum, shard_axes(args.spec("indices")))});
}

}  // namespace

void register_embedding_kernels() {
  register_local_kernel("embedding_vocab", embedding);
  register_local_kernel("embedding_backward_vocab", embedding_backward);
}

}  // namespace dtensor
