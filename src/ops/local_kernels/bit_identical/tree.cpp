// The tree's nodes, their exchange, and sums of rows.
#include "ops/local_kernels/bit_identical/tree.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "internal/microbatch_sums.h"
#include "ops/local_kernels/local_args.h"

namespace dtensor::bit_identical {
namespace {

constexpr std::int64_t kColumns = 512;       // columns that are summed together, in cache
constexpr std::int64_t kElements = 1 << 14;  // elements of a subtree that one thread sums, if it has 8 leaves or more
constexpr int kLeastLevel = 3, kMostLevel = 10;

// Appends the leaves of `inner` in each index of `outer`.
Segments nested(const Segments& outer, const Segments& inner, std::int64_t inner_leaves) {
  Segments all;
  for (const auto& o : outer) {
    for (std::int64_t i = o.offset; i < o.offset + o.length; ++i) {
      for (const auto& s : inner) {
        const std::int64_t begin = i * inner_leaves + s.offset;
        const bool joins = !all.empty() && all.back().offset + all.back().length == begin;
        if (joins) all.back().length += s.length;
        if (!joins && s.length > 0) all.push_back({begin, s.length});
      }
    }
  }
  return all;
}

Segments in_blocks(const Segments& segments, std::int64_t block) {
  Segments blocks;
  for (const auto& s : segments) {
    const std::int64_t end = (s.offset + s.length + block - 1) / block;
    if (s.length > 0) blocks.push_back({s.offset / block, end - s.offset / block});
  }
  return blocks;
}

// Segments of one rank, given those of each dimension.
template <class SegmentsOf>
Segments leaves_of_dims(at::IntArrayRef sizes, at::IntArrayRef dims, std::int64_t block, const SegmentsOf& segments) {
  Segments all{{0, 1}};
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const std::int64_t size = i + 1 == dims.size() ? block : 1;
    all = nested(all, in_blocks(segments(dims[i]), size), (sizes[static_cast<std::size_t>(dims[i])] + size - 1) / size);
  }
  return all;
}

// Nodes and their rows, sorted by their leaves.
struct NodeRows {
  at::Tensor rows;
  std::vector<std::pair<Node, std::int64_t>> nodes;
};

NodeRows gather(const at::Tensor& own, const Leaves& leaves) {
  std::vector<std::vector<Node>> of_ranks;
  std::int64_t count = 0;
  for (const Segments& s : leaves.ranks) {
    of_ranks.push_back(nodes_of(s, leaves.count));
    count += std::ssize(of_ranks.back());
  }
  NodeRows all{at::empty({count, own.size(1)}, own.options()), {}};
  std::vector<at::Tensor> outputs;
  for (const auto& nodes : of_ranks) {
    const auto begin = std::ssize(all.nodes);
    for (const Node& node : nodes) all.nodes.emplace_back(node, std::ssize(all.nodes));
    outputs.push_back(all.rows.narrow(0, begin, std::ssize(nodes)));
  }
  leaves.mesh->communicator(leaves.axes).all_gather(outputs, own).wait();
  std::sort(all.nodes.begin(), all.nodes.end(),
            [](const auto& a, const auto& b) { return a.first.first_leaf() < b.first.first_leaf(); });
  return all;
}

// Sums rows of nodes to the rows that remain, in parallel over columns.
template <class T>
void sum_nodes(const NodeRows& all, std::int64_t leaves, const at::Tensor& out) {
  const std::int64_t columns = out.size(1);
  const T* from = all.rows.const_data_ptr<T>();
  T* to = out.mutable_data_ptr<T>();
  at::parallel_for(0, (columns + kColumns - 1) / kColumns, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin * kColumns; c < std::min(end * kColumns, columns); c += kColumns) {
      const std::int64_t width = std::min(kColumns, columns - c);
      TreeSum<T> sum(leaves, width);
      for (const auto& [node, row] : all.nodes) sum.add(node, from + row * columns + c);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        std::copy_n(sum.values(i), width, to + static_cast<std::int64_t>(i) * columns + c);
      }
    }
  });
}

at::Tensor summed(const NodeRows& all, std::int64_t leaves, std::int64_t remaining) {
  if (!all.rows.is_cpu()) {
    TensorSum sum(leaves);
    for (const auto& [node, row] : all.nodes) sum.add(node, all.rows[row]);
    return sum.nodes({all.rows.size(1)}, all.rows.options());
  }
  const auto out = at::empty({remaining, all.rows.size(1)}, all.rows.options());
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "a sum in a BitIdentical scope",
                             [&] { sum_nodes<scalar_t>(all, leaves, out); });
  return out;
}

// The leaves [2^level rows of `stride` elements] of a subtree.
template <class From, class Leaf>
struct Subtree {
  const From* rows;
  std::int64_t stride;
  int level;
  const Leaf& leaf;  // an element as a number of the sum

  Subtree half(int i) const { return {rows + (i * stride << (level - 1)), stride, level - 1, leaf}; }
};

// The sum of some columns. `memory` has level x columns elements.
template <class T, class From, class Leaf>
void sum_columns(const Subtree<From, Leaf>& s, std::int64_t columns, T* out, T* memory) {
  if (s.level == 0) {
    for (std::int64_t c = 0; c < columns; ++c) out[c] = s.leaf(s.rows[c]);
  } else if (s.level == 1) {
    const From* second = s.rows + s.stride;
    for (std::int64_t c = 0; c < columns; ++c) out[c] = s.leaf(s.rows[c]) + s.leaf(second[c]);
  } else {
    sum_columns(s.half(0), columns, out, memory + columns);
    sum_columns(s.half(1), columns, memory, memory + columns);
    for (std::int64_t c = 0; c < columns; ++c) out[c] += memory[c];
  }
}

// The sum of a single column, without gaps. A pass of its own computes the leaves, so that the compiler cannot contract
// a product and a sum.
template <class T, class From, class Leaf>
T sum_numbers(const Subtree<From, Leaf>& s) {
  T sums[1 << kMostLevel];
  std::int64_t count = std::int64_t{1} << s.level;
  for (std::int64_t i = 0; i < count; ++i) sums[i] = s.leaf(s.rows[i]);
  while (count > 1) {
    count /= 2;
    for (std::int64_t i = 0; i < count; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

// Subtrees of this rank's leaves, and the local row at which each begins.
struct Subtrees {
  std::vector<Node> nodes;
  std::vector<std::int64_t> rows{0};
};

Subtrees subtrees_of(const Leaves& leaves, std::int64_t columns) {
  int level = kLeastLevel;
  while (level < kMostLevel && (columns << (level + 1)) <= kElements) ++level;
  Subtrees all;
  for_each_subtree(leaves.own, level, [&](const Node& node) {
    all.nodes.push_back(node);
    all.rows.push_back(all.rows.back() + (std::int64_t{1} << node.level));
  });
  return all;
}

// Sums the leaves of each subtree, in parallel over subtrees and columns.
template <class T, class From, class Leaf>
void sum_subtrees(const at::Tensor& rows, const Subtrees& subtrees, const Leaf& leaf, const at::Tensor& out) {
  const std::int64_t columns = rows.size(1), parts = (columns + kColumns - 1) / kColumns;
  const From* from = rows.const_data_ptr<From>();
  T* to = out.mutable_data_ptr<T>();
  at::parallel_for(0, std::ssize(subtrees.nodes) * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<T> memory(static_cast<std::size_t>(kMostLevel * std::min(columns, kColumns)));
    for (std::int64_t i = begin; i < end; ++i) {
      const auto tree = static_cast<std::size_t>(i / parts);
      const std::int64_t c = i % parts * kColumns;
      const Subtree<From, Leaf> s{from + subtrees.rows[tree] * columns + c, columns, subtrees.nodes[tree].level, leaf};
      T* sums = to + i / parts * columns + c;
      if (columns == 1) *sums = sum_numbers<T>(s);
      if (columns != 1) sum_columns(s, std::min(kColumns, columns - c), sums, memory.data());
    }
  });
}

template <class T, class From, class Leaf>
at::Tensor sum_leaves(const at::Tensor& rows, const Leaves& leaves, const Leaf& leaf) {
  const Subtrees subtrees = subtrees_of(leaves, rows.size(1));
  TORCH_INTERNAL_ASSERT(rows.size(0) == subtrees.rows.back(), "a row for each leaf");
  const auto options = rows.options().dtype(c10::CppTypeToScalarType<T>::value);
  NodeRows sums{at::empty({std::ssize(subtrees.nodes), rows.size(1)}, options), {}};
  sum_subtrees<T, From>(rows, subtrees, leaf, sums.rows);
  for (const Node& node : subtrees.nodes) sums.nodes.emplace_back(node, std::ssize(sums.nodes));
  return complete(summed(sums, leaves.count, std::ssize(nodes_of(leaves.own, leaves.count))), leaves);
}

}  // namespace

at::ScalarType sum_type(at::ScalarType type) { return at::toOpMathType(type); }

bool NodeStack::merge() {
  promote();
  if (nodes_.size() < 2) return false;
  Node& left = nodes_[nodes_.size() - 2];
  const Node right = nodes_.back();
  if (left.level != right.level || left.index % 2 != 0 || right.index != left.index + 1) return false;
  nodes_.pop_back();
  nodes_.back() = {right.level + 1, right.index / 2};
  return true;
}

void NodeStack::promote() {
  Node& last = nodes_.back();
  while (last.index > 0 && last.index % 2 == 0 && last.index + 1 == width_of(leaves_, last.level)) {
    last = {last.level + 1, last.index / 2};
  }
}

void TensorSum::add(Node node, at::Tensor value) {
  stack_.push(node);
  values_.push_back(std::move(value));
  while (stack_.merge()) {
    const at::Tensor right = std::move(values_.back());
    values_.pop_back();
    values_.back().add_(right);
  }
}

at::Tensor TensorSum::nodes(at::IntArrayRef sizes, const at::TensorOptions& options) const {
  if (!values_.empty()) return at::stack(values_);
  auto none = sizes.vec();
  none.insert(none.begin(), 0);
  return at::empty(none, options);
}

std::vector<Node> nodes_of(const Segments& segments, std::int64_t leaves) {
  NodeStack stack(leaves);
  for_each_subtree(segments, 62, [&](const Node& node) {
    stack.push(node);
    while (stack.merge()) {
    }
  });
  return stack.nodes();
}

Leaves leaves_of(const MeshImpl& mesh, const TensorSpec* spec, at::IntArrayRef sizes, at::IntArrayRef dims,
                 std::int64_t block) {
  Leaves leaves;
  leaves.mesh = &mesh;
  leaves.axes = shard_axes(spec, dims);
  leaves.count = 1;
  const auto size_of = [&](std::int64_t d) { return sizes[static_cast<std::size_t>(d)]; };
  for (const auto d : dims) leaves.count *= d == dims.back() ? (size_of(d) + block - 1) / block : size_of(d);
  leaves.own = leaves_of_dims(sizes, dims, block, [&](std::int64_t d) { return own_segments(spec, d, size_of(d)); });
  if (leaves.axes == 0) return leaves;
  const auto ranks = static_cast<std::size_t>(mesh.communicator(leaves.axes).size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    leaves.ranks.push_back(leaves_of_dims(
        sizes, dims, block, [&](std::int64_t d) { return segments_of_ranks(*spec, d, leaves.axes)[rank]; }));
  }
  return leaves;
}

at::Tensor complete(const at::Tensor& nodes, const Leaves& leaves) {
  const auto sizes = nodes.sizes().slice(1);
  if (leaves.count == 0) return at::zeros(sizes, nodes.options());
  if (leaves.axes == 0) return nodes.select(0, 0);
  const auto flat = nodes.reshape({nodes.size(0), c10::multiply_integers(sizes)}).contiguous();
  return summed(gather(flat, leaves), leaves.count, 1).view(sizes);
}

at::Tensor sum_rows(const at::Tensor& rows, const Leaves& leaves) {
  if (!rows.is_cpu()) return sum_levels(rows.to(sum_type(rows.scalar_type())), leaves);
  at::Tensor sum;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, rows.scalar_type(), "a sum in a BitIdentical scope", [&] {
    using Sum = at::opmath_type<scalar_t>;
    sum = sum_leaves<Sum, scalar_t>(rows.contiguous(), leaves, [](scalar_t x) { return static_cast<Sum>(x); });
  });
  return sum;
}

at::Tensor sum_over(const MeshImpl& mesh, const TensorSpec* spec, at::IntArrayRef sizes, const at::Tensor& local,
                    std::vector<std::int64_t> dims) {
  if (dims.empty()) return local.to(sum_type(local.scalar_type()), /*non_blocking=*/false, /*copy=*/true);
  std::sort(dims.begin(), dims.end());
  std::vector<std::int64_t> order = dims, kept;
  std::int64_t leaves = 1, columns = 1;
  for (std::int64_t d = 0; d < local.dim(); ++d) {
    const bool summed = std::find(dims.begin(), dims.end(), d) != dims.end();
    (summed ? leaves : columns) *= local.size(d);
    if (!summed) order.push_back(d), kept.push_back(local.size(d));
  }
  const auto rows = local.permute(order).reshape({leaves, columns});
  const auto all = leaves_of(mesh, spec, sizes, dims, 1);
  if (dims.front() == 0) note_batch_sum(all.count);
  return sum_rows(rows, all).view(kept);
}

at::Tensor sum_of_channels(const MeshImpl& mesh, const TensorSpec* spec, at::IntArrayRef sizes,
                           const at::Tensor& local) {
  auto spatial = first_dims(local.dim());
  spatial.erase(spatial.begin(), spatial.begin() + 2);
  return sum_over(mesh, spec, sizes, sum_over(mesh, spec, sizes, local, spatial), {0});
}

at::Tensor sum_squares(const at::Tensor& values, const Leaves& leaves) {
  const auto rows = values.reshape({-1, 1});
  if (!rows.is_cpu()) {
    const auto wide = rows.to(at::kDouble);
    return sum_levels(at::mul(wide, wide), leaves).select(0, 0);
  }
  at::Tensor sum;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, rows.scalar_type(), "a norm in a BitIdentical scope", [&] {
    sum = sum_leaves<double, scalar_t>(rows, leaves, [](scalar_t x) {
      const auto wide = static_cast<double>(x);
      return wide * wide;
    });
  });
  return sum.select(0, 0);
}

}  // namespace dtensor::bit_identical
