// Adaptive average pooling with sharded spatial dimensions. Each rank adds its rows to the averages of all windows, so
// forward communicates only the reduction of the averages, and backward nothing.
#include "ops/local_kernels/exchanged_pieces.h"

namespace dtensor {
namespace {

using Stack = torch::jit::Stack;

// An adaptive pooling, forward or backward, of the image `self`.
class AdaptivePool {
 public:
  // The averages or their gradient; `spec` is null for a regular tensor.
  AdaptivePool(const LocalCall& call, const TensorSpec* spec, at::IntArrayRef averages)
      : image_(LocalArgs(call).spec("self")), averages_(averages) {
    const auto arguments = torch::jit::last(call.stack, call.info.args.size());
    stack.assign(arguments.begin(), arguments.end());
    for (std::int64_t dim = 0; image_ != nullptr && dim < image_->dim(); ++dim) {
      // A batch and channels are sharded in both tensors.
      if (shard_axes(image_, dim) != 0 && shard_axes(spec, dim) == 0) sharded.push_back(dim);
    }
  }

  // The share of each local row in each average: [averages, local rows].
  at::Tensor shares(std::int64_t dim, const at::TensorOptions& options) const {
    const auto before = image_->sizes[static_cast<std::size_t>(dim)], after = averages_[static_cast<std::size_t>(dim)];
    const auto rows = own_segments(image_, dim, before);
    std::vector<double> all;
    for (std::int64_t average = 0; average < after; ++average) {
      const auto begin = average * before / after, end = ((average + 1) * before + after - 1) / after;
      for (const Segment& s : rows) {
        for (std::int64_t row = s.offset; row < s.offset + s.length; ++row) {
          all.push_back(row >= begin && row < end ? 1.0 / static_cast<double>(end - begin) : 0.0);
        }
      }
    }
    return at::tensor(all, at::kDouble).to(options).view({after, total_length(rows)});
  }

  std::vector<std::int64_t> sharded;  // spatial dimensions
  Stack stack;

 private:
  const TensorSpec* image_;
  const at::IntArrayRef averages_;
};

// Replaces the rows along `dim` by their products with `matrix`, [rows, new rows].
at::Tensor times(const at::Tensor& rows, std::int64_t dim, const at::Tensor& matrix) {
  return at::matmul(rows.movedim(dim, -1), matrix).movedim(-1, dim);
}

void adaptive_avg_split(LocalCall& call) {
  const LocalArgs args(call);
  AdaptivePool pool(call, call.outputs[0].get(), call.outputs[0]->sizes);
  if (pool.sharded.empty()) return return_zeros_if_empty(call) ? void() : call.info.op.callBoxed(call.stack);
  const auto self = args.tensor("self"), result = zeros_of(call, call.outputs[0]);
  if (self.numel() > 0 && result.numel() > 0) {
    auto averages = self.to(accumulate_type(self.scalar_type()));
    // The ATen operator averages along the unsharded dimensions.
    auto sizes = args.value("output_size").toIntVector();
    const auto first = self.dim() - std::ssize(sizes);
    for (const auto dim : pool.sharded) sizes[static_cast<std::size_t>(dim - first)] = self.size(dim);
    pool.stack[index_of(call, "output_size")] = sizes;
    averages = run_piece(call, pool.stack, {{"self", averages}}).back().toTensor();
    for (const auto dim : pool.sharded) averages = times(averages, dim, pool.shares(dim, averages.options()).t());
    result.copy_(averages);
  }
  set_results(call, {result});
}

void adaptive_avg_split_backward(LocalCall& call) {
  const LocalArgs args(call);
  AdaptivePool pool(call, args.spec("grad_output"), args.global_sizes("grad_output"));
  if (pool.sharded.empty()) return return_zeros_if_empty(call) ? void() : call.info.op.callBoxed(call.stack);
  const auto grad = args.tensor("grad_output"), result = zeros_of(call, call.outputs[0]);
  if (grad.numel() > 0 && result.numel() > 0) {
    auto rows = grad.to(accumulate_type(grad.scalar_type()));
    for (const auto dim : pool.sharded) rows = times(rows, dim, pool.shares(dim, rows.options()));
    rows = run_piece(call, pool.stack,
                     {{"grad_output", rows.contiguous()}, {"self", at::empty_like(result, rows.options())}})
               .back()
               .toTensor();
    result.copy_(rows);
  }
  set_results(call, {result});
}

}  // namespace

void add_adaptive_pooling_kernels(LocalKernels& kernels) {
  kernels.emplace("adaptive_avg_split", adaptive_avg_split);
  kernels.emplace("adaptive_avg_split_backward", adaptive_avg_split_backward);
}

}  // namespace dtensor
