// Sums by a binary tree over global leaves. Node (level, i) is the sum of (level - 1, 2 i) and (level - 1, 2 i + 1); a
// node without a right sibling passes on unchanged. A rank sums the largest subtrees that it owns; ranks then exchange
// these nodes and complete the tree.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "internal/contiguous_ranges.h"
#include "mesh/mesh_impl.h"
#include "placement/spec.h"

namespace dtensor::bit_identical {

// Dimensions 0 to n - 1.
inline std::vector<std::int64_t> first_dims(std::int64_t n) {
  std::vector<std::int64_t> dims(static_cast<std::size_t>(n));
  std::iota(dims.begin(), dims.end(), std::int64_t{0});
  return dims;
}

struct Node {
  int level;
  std::int64_t index;
  std::int64_t first_leaf() const { return index << level; }
};

// Number of nodes on a level.
inline std::int64_t width_of(std::int64_t leaves, int level) { return ((leaves - 1) >> level) + 1; }

// The nodes of a tree in order, while leaves or subtrees are added from the left.
class NodeStack {
 public:
  explicit NodeStack(std::int64_t leaves) : leaves_(leaves) {}

  void push(Node node) { nodes_.push_back(node); }
  void clear() { nodes_.clear(); }
  // Whether the two last nodes are siblings; if so, they become their parent. Repeat until false.
  bool merge();
  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  void promote();  // while the last node has no sibling to its right

  std::int64_t leaves_;
  std::vector<Node> nodes_;
};

// The subtrees that remain when the leaves of these segments are summed.
std::vector<Node> nodes_of(const Segments& segments, std::int64_t leaves);

// Calls visit(node) for the largest subtrees of at most 2^level leaves in these segments, in order.
template <class Visit>
void for_each_subtree(const Segments& segments, int level, const Visit& visit) {
  for (const auto& s : segments) {
    for (std::int64_t leaf = s.offset, end = s.offset + s.length; leaf < end;) {
      Node node{0, leaf};
      while (node.level < level && node.index % 2 == 0 && leaf + (std::int64_t{2} << node.level) <= end) {
        node = {node.level + 1, node.index / 2};
      }
      visit(node);
      leaf += std::int64_t{1} << node.level;
    }
  }
}

// Partial sums of `width` numbers at a time.
template <class T>
class TreeSum {
 public:
  TreeSum(std::int64_t leaves, std::int64_t width) : stack_(leaves), width_(width) {}

  // Memory for the values of the next node.
  T* next() {
    const auto used = stack_.nodes().size();
    if (memory_.size() <= used) memory_.emplace_back(static_cast<std::size_t>(width_));
    return memory_[used].data();
  }
  // `values` are in next(), or elsewhere.
  void add(Node node, const T* values) {
    T* own = next();
    stack_.push(node);
    bool merged = false;
    for (; stack_.merge(); merged = true) {
      T* left = memory_[stack_.nodes().size() - 1].data();
      for (std::int64_t i = 0; i < width_; ++i) left[i] += values[i];
      values = left;
    }
    if (!merged && values != own) std::copy_n(values, width_, own);
  }
  void clear() { stack_.clear(); }
  std::size_t size() const { return stack_.nodes().size(); }
  const T* values(std::size_t node) const { return memory_[node].data(); }

 private:
  NodeStack stack_;
  std::int64_t width_;
  std::vector<std::vector<T>> memory_;
};

// The same sums of tensors, of which left siblings are overwritten.
class TensorSum {
 public:
  explicit TensorSum(std::int64_t leaves) : stack_(leaves) {}

  void add(Node node, at::Tensor value);
  // A row of the options and `sizes` for each node.
  at::Tensor nodes(at::IntArrayRef sizes, const at::TensorOptions& options) const;

 private:
  NodeStack stack_;
  std::vector<at::Tensor> values_;
};

// How the leaves of a sum are spread over ranks.
struct Leaves {
  std::int64_t count = 0;
  Segments own;
  std::vector<Segments> ranks;  // along `axes`, in the order of their communicator; empty: this rank has all
  const MeshImpl* mesh = nullptr;
  AxisMask axes = 0;
};

// The leaves of dimensions `dims` of a tensor, row-major, with blocks of `block` indices in the last of them. A null
// spec is Replicate with `sizes`.
Leaves leaves_of(const MeshImpl& mesh, const TensorSpec* spec, at::IntArrayRef sizes, at::IntArrayRef dims,
                 std::int64_t block);

// The root of a tree. `nodes` has a row for each of this rank's nodes, in order; the result lacks that dimension.
at::Tensor complete(const at::Tensor& nodes, const Leaves& leaves);

// The sum of the rows [leaves, columns] of this rank, completed over ranks. Half types are summed in float.
at::Tensor sum_rows(const at::Tensor& rows, const Leaves& leaves);

// The same for rows in the dtype of sums, by ATen's operators: for devices other than the CPU.
at::Tensor sum_levels(const at::Tensor& rows, const Leaves& leaves);

// The sum of a local tensor over `dims` of the global tensor of `sizes`, which the result lacks. A null spec is
// Replicate.
at::Tensor sum_over(const MeshImpl& mesh, const TensorSpec* spec, at::IntArrayRef sizes, const at::Tensor& local,
                    std::vector<std::int64_t> dims);

// The sum of a local tensor [batch, channels, ...] over all dimensions but the channels: a tree for each image, then
// one over the batch.
at::Tensor sum_of_channels(const MeshImpl& mesh, const TensorSpec* spec, at::IntArrayRef sizes,
                           const at::Tensor& local);

// The sum in float64 of the squares of this rank's elements, row-major, completed over ranks.
at::Tensor sum_squares(const at::Tensor& values, const Leaves& leaves);

// Dtype of the sums of a type: float for half types.
at::ScalarType sum_type(at::ScalarType type);

}  // namespace dtensor::bit_identical
