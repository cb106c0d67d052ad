// Pooling with sharded spatial dimensions. Each rank fetches the rows that the windows of its shard read. Backward
// needs no input rows: it sends the gradients of other ranks' rows to their owners.
#include <limits>

#include "ops/local_kernels/exchanged_pieces.h"

namespace dtensor {
namespace {

using Stack = torch::jit::Stack;

// Pooling arguments: lists of one number for each spatial dimension, which are the last dimensions of `self`.
struct Pool {
  std::vector<std::int64_t> kernel, stride, padding, dilation;
  std::int64_t rank, count;

  Pool(const LocalCall& call, const LocalArgs& args, std::int64_t dims)
      : rank(dims), count(call.info.schema().arguments()[index_of(call, "kernel_size")].N().value()) {
    const bool strides = !args.value("stride").toIntVector().empty();
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      kernel.push_back(number_at(args, "kernel_size", i));
      stride.push_back(strides ? number_at(args, "stride", i) : kernel.back());
      padding.push_back(number_at(args, "padding", i));
      dilation.push_back(args.has("dilation") ? number_at(args, "dilation", i) : 1);
    }
  }
  std::int64_t dim(std::size_t i) const { return rank - count + static_cast<std::int64_t>(i); }
  std::size_t spatial_index(std::int64_t dim) const { return static_cast<std::size_t>(dim - rank + count); }
  at::IntArrayRef spatial_sizes(at::IntArrayRef sizes) const {
    return sizes.slice(sizes.size() - static_cast<std::size_t>(count));
  }
  // Global index of the first row that a piece reads.
  std::int64_t begin(const HaloExchange& exchange, const Piece& piece) const {
    const auto i = spatial_index(exchange.dim());
    return piece.row * stride[i] - padding[i];
  }
  Window window(std::size_t i) const { return {stride[i], padding[i], dilation[i] * (kernel[i] - 1) + 1}; }
};

HaloExchanges exchanges(const LocalCall& call, const Pool& pool, const TensorSpec* input, const TensorSpec* windows) {
  HaloExchanges all;
  for (std::size_t i = 0; input != nullptr && i < pool.kernel.size(); ++i) {
    if (shard_axes(input, pool.dim(i)) == 0) continue;
    all.emplace_back(call.mesh, *input, *windows, pool.dim(i), pool.window(i));
  }
  return all;
}

// The operator's arguments for a piece: no padding along sharded dimensions, since pieces contain it; sums instead of
// averages.
Stack piece_arguments(const LocalCall& call, const LocalArgs& args, const Pool& pool, const HaloExchanges& halos) {
  const auto arguments = torch::jit::last(call.stack, call.info.args.size());
  Stack stack(arguments.begin(), arguments.end());
  auto padding = pool.padding;
  for (const auto& exchange : halos) padding[pool.spatial_index(exchange.dim())] = 0;
  stack[index_of(call, "padding")] = c10::IValue(padding);
  if (args.has("divisor_override")) stack[index_of(call, "divisor_override")] = 1;
  return stack;
}

// --- averages ---

// The number of elements in each window of this rank. It broadcasts over the result.
at::Tensor counts_of(const LocalArgs& args, const Pool& pool, const TensorSpec& input, const TensorSpec& windows,
                     const at::TensorOptions& options) {
  if (!args.value("divisor_override").isNone()) return at::full({}, args.integer("divisor_override"), options);
  at::Tensor counts = at::ones({}, options);
  for (std::size_t i = 0; i < pool.kernel.size(); ++i) {
    const auto dim = static_cast<std::size_t>(pool.dim(i));
    const auto n = input.sizes[dim];
    std::vector<std::int64_t> found;
    for (const Segment& s : own_segments(&windows, pool.dim(i), windows.sizes[dim])) {
      for (std::int64_t row = s.offset; row < s.offset + s.length; ++row) {
        auto begin = row * pool.stride[i] - pool.padding[i],
             end = std::min(begin + pool.kernel[i], n + pool.padding[i]);
        if (!args.flag("count_include_pad")) begin = std::max<std::int64_t>(begin, 0), end = std::min(end, n);
        found.push_back(end - begin);
      }
    }
    counts = counts.unsqueeze(-1) * at::tensor(found, at::kLong).to(options);
  }
  return counts;
}

at::Tensor divided(const at::Tensor& sums, const at::Tensor& counts) {
  return at::isIntegralType(sums.scalar_type(), false) ? sums.div(counts, "trunc") : sums.div(counts);
}

void avg_pool_split(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self");
  const Pool pool(call, args, self.dim());
  const auto* spec = args.spec("self");
  const auto halos = exchanges(call, pool, spec, call.outputs[0].get());
  if (halos.empty()) return return_zeros_if_empty(call) ? void() : call.info.op.callBoxed(call.stack);
  const auto type = accumulate_type(self.scalar_type());
  const auto fetched = fetch_halo(halos, self).to(type);
  const auto sums = empty_of(call, call.outputs[0]).to(type);
  if (sums.numel() > 0) {
    const Stack stack = piece_arguments(call, args, pool, halos);
    for_each_piece(halos, {sums}, fetched, [&](const auto& parts, const at::Tensor& rows, const auto&) {
      parts[0].copy_(run_piece(call, stack, {{"self", rows}}).back().toTensor());
    });
  }
  const auto counts = counts_of(args, pool, *spec, *call.outputs[0], sums.options());
  set_results(call, {divided(sums, counts).to(self.scalar_type())});
}

// Zeros in the shape of the rows that this rank reads.
at::Tensor zeros_of_fetched(const at::Tensor& self, const HaloExchanges& halos, at::ScalarType type) {
  auto sizes = self.sizes().vec();
  for (const auto& exchange : halos) {
    auto& size = sizes[static_cast<std::size_t>(exchange.dim())] = 0;
    for (const Segment& s : exchange.fetched()) size += s.length;
  }
  return at::zeros(sizes, self.options().dtype(type));
}

at::Tensor rows_without_padding(const at::Tensor& fetched, const HaloExchange& exchange, const Piece& piece) {
  return fetched.narrow(exchange.dim(), piece.from, piece.length);
}

void avg_pool_split_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self"), grad = args.tensor("grad_output");
  const Pool pool(call, args, self.dim());
  const auto* windows = args.spec("grad_output");
  const auto halos = exchanges(call, pool, args.spec("self"), windows);
  if (halos.empty()) return return_zeros_if_empty(call) ? void() : call.info.op.callBoxed(call.stack);
  const auto type = accumulate_type(grad.scalar_type());
  const auto shares = zeros_of_fetched(self, halos, type);
  if (grad.numel() > 0) {
    const auto exact = grad.to(type);
    const auto each = divided(exact, counts_of(args, pool, *args.spec("self"), *windows, exact.options()));
    const Stack stack = piece_arguments(call, args, pool, halos);
    const PieceKernel run = [&](const auto& parts, const at::Tensor& shares_of_rows, const auto& pieces) {
      auto sizes = self.sizes().vec();
      for (std::size_t k = 0; k < pieces.size(); ++k) {
        sizes[static_cast<std::size_t>(halos[k].dim())] = pieces[k].before + pieces[k].length + pieces[k].after;
      }
      const auto rows = at::empty(sizes, shares.options());
      auto of_rows = run_piece(call, stack, {{"grad_output", parts[0].contiguous()}, {"self", rows}}).back().toTensor();
      for (std::size_t k = 0; k < pieces.size(); ++k) {
        of_rows = of_rows.narrow(halos[k].dim(), pieces[k].before, pieces[k].length);
      }
      shares_of_rows.add_(of_rows);
    };
    for_each_piece(halos, {each}, shares, run, rows_without_padding);
  }
  set_results(call, {reduce_halo(halos, shares.to(grad.scalar_type()))});
}

// --- maxima ---

// Coordinates of flat indices within planes of these sizes.
std::vector<at::Tensor> coordinates(at::Tensor flat, at::IntArrayRef sizes) {
  std::vector<at::Tensor> all(sizes.size());
  for (std::size_t i = sizes.size(); i-- > 0;) {
    all[i] = flat.remainder(std::max<std::int64_t>(sizes[i], 1));
    flat = flat.div(std::max<std::int64_t>(sizes[i], 1), "floor");
  }
  return all;
}

at::Tensor flat_index(const std::vector<at::Tensor>& coordinates, at::IntArrayRef sizes) {
  at::Tensor flat = coordinates[0];
  for (std::size_t i = 1; i < sizes.size(); ++i) flat = flat * sizes[i] + coordinates[i];
  return flat;
}

// Whether flat indices of a rank differ from global ones by a constant.
bool shards_leading_dim(const HaloExchanges& halos, const Pool& pool) {
  return halos.size() == 1 && halos[0].dim() == pool.dim(0);
}
std::int64_t elements_of_row(at::IntArrayRef plane) { return c10::multiply_integers(plane.slice(1)); }

at::Scalar below_all(at::ScalarType type) {
  if (at::isIntegralType(type, false)) return reduce_identity(type, ReduceOp::max);
  return -std::numeric_limits<double>::infinity();
}

void max_pool_split(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self");
  const Pool pool(call, args, self.dim());
  const auto halos = exchanges(call, pool, args.spec("self"), call.outputs[0].get());
  if (halos.empty()) return return_zeros_if_empty(call) ? void() : call.info.op.callBoxed(call.stack);
  const auto lowest = below_all(self.scalar_type());
  const auto fetched = fetch_halo(halos, self, lowest);
  const auto values = empty_of(call, call.outputs[0]), indices = empty_of(call, call.outputs[1]);
  const auto plane = pool.spatial_sizes(args.global_sizes("self"));
  const PieceKernel run = [&, stack = piece_arguments(call, args, pool, halos)](
                              const auto& results, const at::Tensor& rows, const auto& pieces) {
    const Stack piece = run_piece(call, stack, {{"self", rows}});
    results[0].copy_(piece[0].toTensor());
    const auto first = pool.begin(halos[0], pieces[0]);
    if (shards_leading_dim(halos, pool) && first >= 0) {
      results[1].copy_(piece[1].toTensor());
      results[1].add_(first * elements_of_row(plane));
      return;
    }
    auto found = coordinates(piece[1].toTensor(), pool.spatial_sizes(rows.sizes()));
    for (std::size_t k = 0; k < halos.size(); ++k) {
      const auto i = pool.spatial_index(halos[k].dim());
      found[i] = found[i] + pool.begin(halos[k], pieces[k]);
      // If all elements of a window are -inf, ATen returns its first element outside the padding.
      found[i] = at::where(found[i].lt(0), found[i].remainder(pool.dilation[i]), found[i]);
    }
    results[1].copy_(flat_index(found, plane));
  };
  if (values.numel() > 0) for_each_piece(halos, {values, indices}, fetched, run, padded_with(lowest));
  set_results(call, {values, indices});
}

// Checks the indices, because ATen's kernels write there without bounds checks, and runs the ATen operator.
void run_if_within_planes(LocalCall& call, std::size_t count) {
  const LocalArgs args(call);
  const auto sizes = args.global_sizes("self");
  const auto plane = c10::multiply_integers(sizes.slice(sizes.size() - std::min(count, sizes.size())));
  check_indices(args.tensor("indices"), plane, "the gradient of a pooling: index");
  if (!return_zeros_if_empty(call)) call.info.op.callBoxed(call.stack);
}

// An index outside of its window would need a row that the halo exchange does not fetch.
void check_within_windows(const at::Tensor& within) {
  if (!within.is_cpu()) return at::_assert_async(within.all(), "an index lies outside of its window");
  TORCH_CHECK_INDEX(within.all().item<bool>(), "the gradient of a pooling: an index lies outside of its window");
}

// Flat global indices as flat indices into the fetched rows.
at::Tensor fetched_index(const at::Tensor& indices, const HaloExchanges& halos, const Pool& pool,
                         at::IntArrayRef plane) {
  if (shards_leading_dim(halos, pool) && halos[0].fetched().size() == 1) {
    const auto& rows = halos[0].fetched()[0];
    const auto flat = indices - rows.offset * elements_of_row(plane);
    const auto [lowest, highest] = at::aminmax(flat);
    check_within_windows(lowest.ge(0).logical_and(highest.lt(rows.length * elements_of_row(plane))));
    return flat;
  }
  auto within = indices.ge(0).logical_and_(indices.lt(c10::multiply_integers(plane)));
  auto found = coordinates(indices, plane);
  std::vector<std::int64_t> sizes = plane.vec();
  for (const auto& exchange : halos) {
    const auto i = pool.spatial_index(exchange.dim());
    const auto index = to_local_index(found[i], exchange.fetched());
    within.logical_and_(index.own);
    found[i] = index.local;
    sizes[i] = total_length(exchange.fetched());
  }
  check_within_windows(within);
  return flat_index(found, sizes);
}

void max_pool_split_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self"), grad = args.tensor("grad_output");
  const Pool pool(call, args, self.dim());
  const auto halos = exchanges(call, pool, args.spec("self"), args.spec("grad_output"));
  if (halos.empty()) return run_if_within_planes(call, pool.kernel.size());
  const auto shares = zeros_of_fetched(self, halos, accumulate_type(grad.scalar_type()));
  if (grad.numel() > 0) {
    const auto flat = fetched_index(args.tensor("indices"), halos, pool, pool.spatial_sizes(args.global_sizes("self")));
    const auto first = static_cast<std::int64_t>(self.dim() - pool.count);
    shares.flatten(first).scatter_add_(first, flat.flatten(first), grad.to(shares.scalar_type()).flatten(first));
  }
  set_results(call, {reduce_halo(halos, shares.to(grad.scalar_type()))});
}

}  // namespace

void add_pooling_kernels(LocalKernels& kernels) {
  kernels.emplace("avg_pool_split", avg_pool_split);
  kernels.emplace("avg_pool_split_backward", avg_pool_split_backward);
  kernels.emplace("max_pool_split", max_pool_split);
  kernels.emplace("max_pool_split_backward", max_pool_split_backward);
  kernels.emplace("pool2d_backward_by_indices", [](LocalCall& call) { run_if_within_planes(call, 2); });
  kernels.emplace("pool3d_backward_by_indices", [](LocalCall& call) { run_if_within_planes(call, 3); });
}

}  // namespace dtensor
