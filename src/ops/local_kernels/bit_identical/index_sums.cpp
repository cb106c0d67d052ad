// Sums of rows with equal indices in a BitIdentical scope: gradients of embeddings, index_add, scatter_add, index_put.
// Each is a tree over the positions of the indices, in which absent positions are left out, so the sum of two halves is
// that of the full list. Sums begin with +0, as absent rows do.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <c10/core/WrapDimMinimal.h>

#include <numeric>

#include "internal/microbatch_sums.h"
#include "ops/local_kernels/bit_identical/tree.h"
#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

// A partial sum of a row of `width` numbers, and the index of its node on the current level.
template <class T>
using RowSum = std::pair<std::int64_t, std::vector<T>>;

// Sums nodes with the same parent, level by level.
template <class T>
const std::vector<T>& root_of(std::vector<RowSum<T>>& nodes) {
  while (nodes.size() > 1) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < nodes.size(); ++kept) {
      const auto parent = nodes[i].first / 2;
      if (kept != i) nodes[kept] = std::move(nodes[i]);
      nodes[kept].first = parent;
      if (++i == nodes.size() || nodes[i].first / 2 != parent) continue;
      auto &left = nodes[kept].second, &right = nodes[i].second;
      for (std::size_t c = 0; c < left.size(); ++c) left[c] += right[c];
      ++i;
    }
    nodes.resize(kept);
  }
  return nodes[0].second;
}

// out[index[i]] = the sum of the rows i of `values` [count, width].
template <class T, class From>
void sum_equal_indices(const From* values, const std::int64_t* index, std::int64_t count, std::int64_t width, T* out) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return index[a] < index[b]; });
  std::vector<RowSum<T>> nodes;
  for (std::size_t i = 0; i < order.size();) {
    const std::int64_t row = index[order[i]];
    nodes.clear();
    for (; i < order.size() && index[order[i]] == row; ++i) {
      const From* from = values + order[i] * width;
      nodes.emplace_back(order[i], std::vector<T>(from, from + width));
    }
    const std::vector<T>& sum = root_of(nodes);
    for (std::int64_t c = 0; c < width; ++c) out[row * width + c] = sum[static_cast<std::size_t>(c)] + T(0);
  }
}

// The sums [problems, rows, width] of values [problems, count, width] with equal indices [problems, count], computed
// on the host.
at::Tensor sums_of_equal_indices(const at::Tensor& values, const at::Tensor& index, std::int64_t rows) {
  if (!values.is_cpu()) return sums_of_equal_indices(values.cpu(), index.cpu(), rows).to(values.device());
  const std::int64_t count = values.size(1), width = values.size(2);
  const auto type = bit_identical::sum_type(values.scalar_type());
  const auto out = at::zeros({values.size(0), rows, width}, values.options().dtype(type));
  const auto from = values.contiguous(), indices = index.to(at::kLong).contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, from.scalar_type(), "sums in a BitIdentical scope", [&] {
    using Sum = at::opmath_type<scalar_t>;
    at::parallel_for(0, from.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        sum_equal_indices(from.const_data_ptr<scalar_t>() + i * count * width,
                          indices.const_data_ptr<std::int64_t>() + i * count, count, width,
                          out.mutable_data_ptr<Sum>() + i * rows * width);
      }
    });
  });
  return out;
}

void embedding_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto grad = args.tensor("grad_output"), index = args.tensor("indices").reshape({1, -1});
  const auto rows = args.integer("num_weights"), padding = args.integer("padding_idx");
  check_indices(index, rows, "embedding_dense_backward: index");
  note_batch_sum(index.numel());
  const auto out = sums_of_equal_indices(grad.reshape({1, index.numel(), grad.size(-1)}), index, rows)[0];
  if (padding >= 0) out.select(0, padding).zero_();
  set_results(call, {out.to(call.outputs[0]->dtype)});
}

// A scalar as a vector of one element.
at::Tensor with_dim(const at::Tensor& t) { return t.dim() == 0 ? t.unsqueeze(0) : t; }

void index_add(LocalCall& call) {
  const LocalArgs args(call);
  if (!args.tensor("self").is_floating_point()) return set_results(call, run_aten_operator(call));
  const auto self = with_dim(args.tensor("self")), index = args.tensor("index").reshape({1, -1});
  const auto dim = c10::maybe_wrap_dim(args.integer("dim"), self.dim());
  const auto moved = self.movedim(dim, 0), source = with_dim(args.tensor("source")).movedim(dim, 0);
  const std::int64_t rows = moved.size(0), width = c10::multiply_integers(moved.sizes().slice(1));
  check_indices(index, rows, "index_add: index");
  if (dim == 0) note_batch_sum(index.numel());
  auto sums = sums_of_equal_indices(source.reshape({1, index.numel(), width}), index, rows).view(moved.sizes());
  if (const auto alpha = args.value("alpha").toScalar(); !alpha.equal(1)) sums = at::mul(sums, alpha);
  const auto out = at::add(moved.to(sums.scalar_type()), sums).to(self.scalar_type()).movedim(0, dim);
  set_results(call, {out.reshape(args.tensor("self").sizes())});
}

// Along the dimension, each row is a sum of its own.
void scatter_add(LocalCall& call) {
  const LocalArgs args(call);
  if (!args.tensor("self").is_floating_point()) return set_results(call, run_aten_operator(call));
  const auto out = with_dim(args.tensor("self")).clone(), index = with_dim(args.tensor("index"));
  const auto dim = c10::maybe_wrap_dim(args.integer("dim"), out.dim());
  auto source = with_dim(args.tensor("src")), written = out;
  for (std::int64_t d = 0; d < index.dim(); ++d) {
    source = source.narrow(d, 0, index.size(d));
    if (d != dim) written = written.narrow(d, 0, index.size(d));
  }
  const std::int64_t count = index.size(dim), rows = written.size(dim);
  check_indices(index, rows, "scatter_add: index");
  if (dim == 0) note_batch_sum(count);
  if (index.numel() > 0) {
    const auto last = [&](const at::Tensor& t) { return t.movedim(dim, -1); };
    const auto sums =
        sums_of_equal_indices(last(source).reshape({-1, count, 1}), last(index).reshape({-1, count}), rows);
    const auto target = last(written);
    target.copy_(at::add(target.to(sums.scalar_type()), sums.view(target.sizes())));
  }
  set_results(call, {out.view(args.tensor("self").sizes())});
}

// Indices of some dimensions of a tensor, as one index of these dimensions together.
struct FlatIndex {
  std::vector<std::int64_t> order;  // the indexed dimensions, then the others
  std::size_t indexed = 0;
  bool adjacent = true;  // whether the indices' dimensions replace the indexed ones, or stand before all
  at::Tensor flat;
};

FlatIndex flat_index_of(const at::Tensor& self, const std::vector<std::optional<at::Tensor>>& given) {
  FlatIndex index;
  std::vector<at::Tensor> tensors;
  for (std::size_t d = 0; d < given.size(); ++d) {
    if (!given[d] || !given[d]->defined()) continue;
    index.order.push_back(static_cast<std::int64_t>(d));
    tensors.push_back(given[d]->to(at::kLong));
  }
  index.indexed = tensors.size();
  index.adjacent = index.order.back() - index.order.front() + 1 == std::ssize(tensors);
  tensors = at::broadcast_tensors(tensors);
  index.flat = at::zeros_like(tensors[0]);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto n = self.size(index.order[i]);
    const auto wrapped = at::where(tensors[i] < 0, tensors[i] + n, tensors[i]);
    check_indices(wrapped, n, "index_put: index");
    index.flat = index.flat * n + wrapped;
  }
  for (std::int64_t d = 0; d < self.dim(); ++d) {
    const auto end = index.order.begin() + static_cast<std::ptrdiff_t>(index.indexed);
    if (std::find(index.order.begin(), end, d) == end) index.order.push_back(d);
  }
  return index;
}

// Values of self[indices] as [1, indices, other elements]. `other`: sizes of the dimensions that are not indexed.
at::Tensor rows_of_values(const at::Tensor& values, const FlatIndex& index, at::IntArrayRef other) {
  const auto before = index.adjacent ? index.order.front() : 0;  // dimensions before those of the indices
  auto sizes = other.vec();
  sizes.insert(sizes.begin() + before, index.flat.sizes().begin(), index.flat.sizes().end());
  std::vector<std::int64_t> from(static_cast<std::size_t>(index.flat.dim())), to = from;
  std::iota(from.begin(), from.end(), before);
  std::iota(to.begin(), to.end(), std::int64_t{0});
  return values.expand(sizes).movedim(from, to).reshape({1, index.flat.numel(), c10::multiply_integers(other)});
}

// Adds values at indices.
void index_put(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self");
  if (!self.is_floating_point()) return set_results(call, run_aten_operator(call));
  const FlatIndex index = flat_index_of(self, args.value("indices").toOptionalTensorVector());
  const auto moved = self.permute(index.order);
  const auto rows = c10::multiply_integers(moved.sizes().slice(0, index.indexed));
  const auto values = rows_of_values(args.tensor("values"), index, moved.sizes().slice(index.indexed));
  note_batch_sum(index.flat.numel());
  const auto sums = sums_of_equal_indices(values, index.flat.reshape({1, -1}), rows).view(moved.sizes());
  const auto sum = at::add(moved.to(sums.scalar_type()), sums).to(self.scalar_type());
  std::vector<std::int64_t> back(index.order.size());
  for (std::size_t i = 0; i < back.size(); ++i) {
    back[static_cast<std::size_t>(index.order[i])] = static_cast<std::int64_t>(i);
  }
  set_results(call, {sum.permute(back).contiguous()});
}

}  // namespace

void add_index_sum_kernels(LocalKernels& kernels) {
  kernels.emplace("tree_embedding_backward", embedding_backward);
  kernels.emplace("tree_index_add", index_add);
  kernels.emplace("tree_scatter_add", scatter_add);
  kernels.emplace("tree_index_put", index_put);
}

}  // namespace dtensor
