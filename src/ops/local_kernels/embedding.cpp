// Embedding tables with sharded rows. Forward: a rank looks up its own rows and returns zeros for the others, so the
// output is Partial(sum). No mask is kept between calls. Backward: a rank computes the gradient of its own rows only.
// Indices and padding_idx are global.
#include "ops/dispatch/functional_overload.h"
#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

constexpr std::int64_t kSum = 0, kMean = 1, kMax = 2;  // modes of embedding_bag

void embedding(LocalCall& call) {
  const LocalArgs args(call);
  const auto weight = args.tensor("weight"), indices = args.tensor("indices");
  const std::int64_t rows = args.global_sizes("weight")[0];
  check_indices(indices, rows, "embedding: index");
  const auto index = to_local_index(indices, own_segments(args.spec("weight"), 0, rows));
  auto sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  auto result = weight.size(0) == 0 ? at::zeros(sizes, weight.options())
                                    : weight.index_select(0, index.local.reshape({-1})).view(sizes);
  result.masked_fill_(index.own.logical_not().unsqueeze(-1), 0);
  set_results(call, {reduce_contribution(call, result, ReduceOp::sum, shard_axes(args.spec("weight"), 0))});
}

// Divides each row by the number of occurrences of its index in the global batch.
void scale_by_frequency(const LocalCall& call, const LocalArgs& args, const at::Tensor& rows, at::Tensor grad) {
  auto counts = at::bincount(rows.reshape({-1}), {}, grad.size(0) + 1).narrow(0, 0, grad.size(0)).contiguous();
  counts = all_reduce(call.mesh, counts, ReduceOp::sum, shard_axes(args.spec("indices")));
  grad.div_(counts.clamp_min_(1).unsqueeze(1));
}

// Rows of other ranks and the padding row map to one row past the end, which ATen skips as its padding row.
void embedding_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto grad = args.tensor("grad_output"), indices = args.tensor("indices");
  const auto& out = *call.outputs[0];
  const auto segments = own_segments(&out, 0, out.sizes[0]);
  const std::int64_t local_row_count = total_length(segments);
  const auto index = to_local_index(indices, segments);
  auto dropped = index.own.logical_not();
  if (args.integer("padding_idx") >= 0) dropped.logical_or_(indices.eq(args.integer("padding_idx")));
  const auto rows = index.local.masked_fill(dropped, local_row_count);
  auto result = at::embedding_dense_backward(grad, rows, local_row_count + 1, local_row_count, false)
                    .narrow(0, 0, local_row_count);
  if (args.flag("scale_grad_by_freq")) scale_by_frequency(call, args, rows, result);
  set_results(call, {reduce_contribution(call, result, ReduceOp::sum, shard_axes(args.spec("indices")))});
}

at::Tensor kept(const at::Tensor& values, const at::Tensor& where) {
  return values.defined() && values.numel() > 0 ? values.index_select(0, where) : values;
}

// The bag of each index, computed from `offsets` if the caller omits it.
at::Tensor bags_of(const LocalArgs& args, const at::Tensor& indices) {
  auto bags = args.tensor("offset2bag");
  if (bags.numel() == indices.numel() || !args.has("offsets")) return bags;
  const auto positions = at::arange(indices.numel(), indices.options());
  return at::searchsorted(args.tensor("offsets"), positions, false, /*right=*/true).sub_(1).to(indices.scalar_type());
}

// Adds the gradient of each feature of a bag's maximum to the row that it came from. Rows of other ranks map to one row
// past the end, which is dropped.
at::Tensor scatter_maxima(const LocalArgs& args, const Segments& segments, std::int64_t local_row_count) {
  const auto full = args.tensor("bag_size").nonzero().view(-1);
  const auto grad = args.tensor("grad").index_select(0, full);
  const auto index = to_local_index(args.tensor("maximum_indices").index_select(0, full), segments);
  const auto rows = index.local.masked_fill(index.own.logical_not(), local_row_count);
  return at::zeros({local_row_count + 1, grad.size(1)}, grad.options())
      .scatter_add_(0, rows, grad)
      .narrow(0, 0, local_row_count);
}

// The indices of this rank's rows without the padding row: positions in the index list, and local row numbers.
struct LocalRows {
  at::Tensor where, rows;
};

LocalRows local_rows(const LocalArgs& args, const Segments& segments) {
  const auto indices = args.tensor("indices");
  auto index = to_local_index(indices, segments);
  if (args.integer("padding_idx") >= 0) index.own.logical_and_(indices.ne(args.integer("padding_idx")));
  const auto where = index.own.nonzero().view(-1);
  return {where, index.local.index_select(0, where).to(indices.scalar_type())};
}

// The offsets of bags in the list that contains only the positions `where`.
at::Tensor remaining_offsets(const at::Tensor& offsets, const at::Tensor& where) {
  return at::searchsorted(where, offsets.to(at::kLong)).to(offsets.scalar_type());
}

using BagResults = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

BagResults run_bags(const LocalCall& call, const LocalArgs& args, const at::Tensor& weight, const at::Tensor& indices,
                    const at::Tensor& offsets, std::int64_t mode, const at::Tensor& factors, std::int64_t padding) {
  const auto op = call.info.has_out ? functional_overload(call.info.op) : call.info.op;
  const auto each = factors.defined() ? std::optional(factors) : std::nullopt;
  return op.typed<decltype(at::_embedding_bag)>().call(weight, indices, offsets, false, mode, false, each,
                                                       args.flag("include_last_offset"), padding);
}

// Sums this rank's rows of each bag. The other results depend on the indices only and are computed with a table of one
// feature. Means divide by the global bag sizes.
void embedding_bag(LocalCall& call) {
  const LocalArgs args(call);
  const auto weight = args.tensor("weight"), indices = args.tensor("indices"), offsets = args.tensor("offsets");
  const auto factors = args.tensor("per_sample_weights");
  const std::int64_t rows = args.global_sizes("weight")[0], mode = args.integer("mode");
  // Some kernels accept 2-d indices and read bags out of bounds.
  TORCH_CHECK(indices.dim() == 1, "embedding_bag: expected 1-d indices, got sizes ", args.global_sizes("indices"));
  check_indices(indices, rows, "embedding_bag: index");
  const auto feature = at::zeros({1, 1}, weight.options()).expand({rows, 1});
  auto [none, bags, sizes, maxima] =
      run_bags(call, args, feature, indices, offsets, mode, factors, args.integer("padding_idx"));
  const auto own = local_rows(args, own_segments(args.spec("weight"), 0, rows));
  auto sums = at::zeros({none.size(0), weight.size(1)}, weight.options());
  if (own.where.numel() > 0) {
    const auto left = remaining_offsets(offsets, own.where);
    sums = std::get<0>(run_bags(call, args, weight, own.rows, left, kSum, kept(factors, own.where), -1));
  }
  if (mode == kMean) sums.div_(sizes.clamp_min(1).unsqueeze(1));
  sums = reduce_contribution(call, sums, ReduceOp::sum, shard_axes(args.spec("weight"), 0));
  set_results(call, {sums, bags, sizes, maxima});
}

// Checks indices and bags, because ATen's kernels read there without bounds checks. `bag_size` may be empty for sums.
void check_bags(const LocalArgs& args, std::int64_t rows) {
  const auto indices = args.tensor("indices"), bags = bags_of(args, indices), grad = args.tensor("grad");
  TORCH_CHECK(
      grad.dim() == 2 && indices.dim() == 1 && bags.sizes() == indices.sizes(),
      "the gradient of embedding_bag: expected a 2-d gradient and 1-d indices with one bag each, got indices of "
      "sizes ",
      indices.sizes(), ", bags of sizes ", bags.sizes(), ", a gradient of sizes ", grad.sizes());
  check_indices(indices, rows, "the gradient of embedding_bag: index");
  check_indices(bags, grad.size(0), "the gradient of embedding_bag: bag");
  TORCH_CHECK(args.integer("mode") == kSum || !args.has("bag_size") || args.tensor("bag_size").numel() >= grad.size(0),
              "the gradient of embedding_bag: expected a `bag_size` for each bag, got sizes ",
              args.tensor("bag_size").sizes(), " for ", grad.size(0), " bags");
}

// The gradient of a per-sample weight is the product of its row and its bag's gradient. It is zero for rows of other
// ranks.
void embedding_bag_factors_backward(LocalCall& call) {
  const LocalArgs args(call);
  check_bags(args, args.global_sizes("weight")[0]);
  if (shard_axes(args.spec("weight"), 0) == 0) return call.info.op.callBoxed(call.stack);
  const auto weight = args.tensor("weight"), indices = args.tensor("indices");
  const auto own = local_rows(args, own_segments(args.spec("weight"), 0, args.global_sizes("weight")[0]));
  auto result = at::zeros({indices.numel()}, weight.options());
  if (own.where.numel() > 0) {
    const auto bags = bags_of(args, indices).index_select(0, own.where);
    result.index_copy_(
        0, own.where,
        at::_embedding_bag_per_sample_weights_backward(args.tensor("grad"), weight, own.rows, args.tensor("offsets"),
                                                       bags, args.integer("mode"), -1));
  }
  set_results(call, {reduce_contribution(call, result, ReduceOp::sum, shard_axes(args.spec("weight"), 0))});
}

// Omits indices of other ranks' rows and of the padding row. Bag sizes remain global.
void embedding_bag_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto& out = *call.outputs[0];
  check_bags(args, out.sizes[0]);
  if (shard_axes(&out, 0) == 0) return call.info.op.callBoxed(call.stack);
  const auto segments = own_segments(&out, 0, out.sizes[0]);
  const std::int64_t row_count = total_length(segments);
  if (args.integer("mode") == kMax) return set_results(call, {scatter_maxima(args, segments, row_count)});
  const LocalRows own = local_rows(args, segments);
  auto result = at::_embedding_bag_dense_backward(
      args.tensor("grad"), own.rows, bags_of(args, args.tensor("indices")).index_select(0, own.where),
      args.tensor("bag_size"), args.tensor("maximum_indices"), row_count, args.flag("scale_grad_by_freq"),
      args.integer("mode"), kept(args.tensor("per_sample_weights"), own.where), -1);
  set_results(call, {result});
}

}  // namespace

void add_embedding_kernels(LocalKernels& kernels) {
  kernels.emplace("embedding_bag_vocab", embedding_bag);
  kernels.emplace("embedding_bag_factors_backward", embedding_bag_factors_backward);
  kernels.emplace("embedding_bag_backward", embedding_bag_backward);
  kernels.emplace("embedding_vocab", embedding);
  kernels.emplace("embedding_backward_vocab", embedding_backward);
}

}  // namespace dtensor
