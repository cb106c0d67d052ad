// The tree's nodes, their exchange, and sums of rows.
#include "ops/local_kernels/bit_identical/tree.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "ops/local_kernels/local_args.h"

namespace dtensor::bit_identical {
namespace {

constexpr std::int64_t kColumns = 512;  // columns that are summed together, in cache

// Number of nodes on a level.
std::int64_t width_of(std::int64_t leaves, int level) { return ((leaves - 1) >> level) + 1; }

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

// The nodes of all ranks as rows, sorted by their leaves.
struct Gathered {
  std::vector<Node> nodes;
  at::Tensor rows;
};

Gathered gather(const at::Tensor& own, const Leaves& leaves) {
  std::vector<std::vector<Node>> of_ranks;
  std::int64_t count = 0;
  for (const Segments& s : leaves.ranks) {
    of_ranks.push_back(nodes_of(s, leaves.count));
    count += std::ssize(of_ranks.back());
  }
  at::Tensor all = at::empty({count, own.size(1)}, own.options());
  std::vector<at::Tensor> outputs;
  std::vector<std::pair<Node, std::int64_t>> order;
  for (const auto& nodes : of_ranks) {
    const auto begin = std::ssize(order);
    for (const Node& node : nodes) order.emplace_back(node, std::ssize(order));
    outputs.push_back(all.narrow(0, begin, std::ssize(nodes)));
  }
  leaves.mesh->communicator(leaves.axes).all_gather(outputs, own).wait();
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.first.first_leaf() < b.first.first_leaf(); });
  Gathered result;
  std::vector<std::int64_t> rows;
  for (const auto& [node, row] : order) result.nodes.push_back(node), rows.push_back(row);
  result.rows = all.index_select(0, at::tensor(rows, at::kLong));
  return result;
}

// Sums rows of nodes to the rows that remain, in parallel over columns.
template <class T, class From>
void sum_nodes(const at::Tensor& rows, const std::vector<Node>& nodes, std::int64_t leaves, const at::Tensor& out) {
  const std::int64_t columns = rows.size(1);
  const From* from = rows.const_data_ptr<From>();
  T* to = out.mutable_data_ptr<T>();
  at::parallel_for(0, (columns + kColumns - 1) / kColumns, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin * kColumns; c < std::min(end * kColumns, columns); c += kColumns) {
      const std::int64_t width = std::min(kColumns, columns - c);
      TreeSum<T> sum(leaves, width);
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        const From* row = from + static_cast<std::int64_t>(i) * columns + c;
        std::copy(row, row + width, sum.next());
        sum.add(nodes[i]);
      }
      for (std::size_t i = 0; i < sum.size(); ++i) {
        std::copy(sum.values(i), sum.values(i) + width, to + static_cast<std::int64_t>(i) * columns + c);
      }
    }
  });
}

at::Tensor summed(const at::Tensor& rows, const std::vector<Node>& nodes, std::int64_t leaves, std::int64_t remaining) {
  const auto type = sum_type(rows.scalar_type());
  const auto out = at::empty({remaining, rows.size(1)}, rows.options().dtype(type));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, rows.scalar_type(), "a sum in a BitIdentical scope",
                                  [&] { sum_nodes<at::opmath_type<scalar_t>, scalar_t>(rows, nodes, leaves, out); });
  return out;
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

std::vector<Node> nodes_of(const Segments& segments, std::int64_t leaves) {
  NodeStack stack(leaves);
  for (const auto& s : segments) {
    for (std::int64_t leaf = s.offset; leaf < s.offset + s.length; ++leaf) {
      stack.push({0, leaf});
      while (stack.merge()) {
      }
    }
  }
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
  const Gathered all = gather(flat, leaves);
  return summed(all.rows, all.nodes, leaves.count, 1).view(sizes);
}

at::Tensor sum_rows(const at::Tensor& rows, const Leaves& leaves) {
  std::vector<Node> order;
  for (const auto& s : leaves.own) {
    for (std::int64_t leaf = s.offset; leaf < s.offset + s.length; ++leaf) order.push_back({0, leaf});
  }
  TORCH_INTERNAL_ASSERT(rows.size(0) == std::ssize(order), "a row for each leaf");
  const auto remaining = std::ssize(nodes_of(leaves.own, leaves.count));
  return complete(summed(rows.contiguous(), order, leaves.count, remaining), leaves);
}

}  // namespace dtensor::bit_identical
