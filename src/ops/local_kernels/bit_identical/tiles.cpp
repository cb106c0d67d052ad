// Each tile has 64 rows and 64 columns; beyond the edges it holds zeros. So the instructions for an element do not
// depend on where it is. The length of a leaf depends on the global size only.
#include "ops/local_kernels/bit_identical/tiles.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <torch/library.h>

#include "internal/bit_identical.h"
#include "internal/library_operator.h"
#include "internal/simulated.h"
#include "ops/local_kernels/bit_identical/devices/leaf_products.h"
#include "ops/local_kernels/local_args.h"

namespace dtensor::bit_identical {
namespace {

using leaf_products::Leaf;
constexpr std::int64_t kTile = 64;

std::int64_t tiles_of(std::int64_t n) { return (n + kTile - 1) / kTile; }

// A strided matrix, read as T.
template <class T, class From>
struct Matrix {
  explicit Matrix(const at::Tensor& t)
      : data(t.const_data_ptr<From>()), rows(t.size(0)), columns(t.size(1)), row(t.stride(0)), column(t.stride(1)) {}

  // Copies a tile of `height` x `width` elements; beyond the matrix's edges it has zeros.
  void copy(std::int64_t from_row, std::int64_t from_column, std::int64_t height, std::int64_t width, T* tile) const {
    const auto m = std::min(height, rows - from_row), n = std::min(width, columns - from_column);
    if (m < height || n < width) std::fill_n(tile, height * width, T(0));
    const From* from = data + from_row * row + from_column * column;
    if (column == 1) {
      for (std::int64_t i = 0; i < m; ++i) std::copy_n(from + i * row, n, tile + i * width);
    } else if (row == 1) {
      transpose(from, column, n, m, tile, width);
    } else {
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) tile[i * width + j] = static_cast<T>(from[i * row + j * column]);
      }
    }
  }

  const From* data;
  std::int64_t rows, columns, row, column;
};

// The product of two matrices: a tile of each partial sum that remains, at a distance of `out_node` elements.
template <class T, class From>
class Product {
 public:
  Product(const at::Tensor& a, const at::Tensor& b, const std::vector<Leaf>& leaves, T* out, std::int64_t out_node)
      : a_(a), b_(b), leaves_(leaves), out_(out), out_node_(out_node) {}

  void run() {
    const std::int64_t rows = tiles_of(a_.rows), columns = tiles_of(b_.columns);
    packed_ = memory_of(columns);
    at::parallel_for(0, columns * std::ssize(leaves_), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        pack_columns(i % columns, leaves_[static_cast<std::size_t>(i / columns)]);
    });
    at::parallel_for(0, rows * columns, 1, [&](std::int64_t begin, std::int64_t end) {
      const auto panel = memory_of(1);
      Sums sums;
      for (std::int64_t i = begin; i < end; ++i) {
        if ((i == begin || i % columns == 0) && !has_rows(i / columns)) pack_rows(i / columns, panel.get());
        run_tile(panel.get(), i / columns, i % columns, sums);
      }
    });
  }

 private:
  using Sums = std::vector<std::vector<T>>;  // tiles

  // Whether the rows of a tile can be read where they are. ATen's brgemm takes another kernel for rows that overlap.
  bool has_rows(std::int64_t tile) const {
    return std::is_same_v<T, From> && a_.column == 1 && a_.row >= a_.columns && (tile + 1) * kTile <= a_.rows;
  }

  // Memory of tiles [kTile, k].
  std::unique_ptr<T[]> memory_of(std::int64_t tiles) const {
    return std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(tiles * kTile * a_.columns));
  }
  T* packed(std::int64_t column) const { return packed_.get() + column * kTile * a_.columns; }

  void pack_columns(std::int64_t tile, const Leaf& leaf) const {
    b_.copy(leaf.begin, tile * kTile, leaf.length, kTile, packed(tile) + leaf.begin * kTile);
  }

  void pack_rows(std::int64_t tile, T* panel) const {
    for (const Leaf& leaf : leaves_) {
      a_.copy(tile * kTile, leaf.begin, kTile, leaf.length, panel + leaf.begin * kTile);
    }
  }

  // A leaf's rows of a tile: where they are, or in the packed panel. Then the distance of rows.
  std::pair<const T*, std::int64_t> rows_of(std::int64_t tile, const Leaf& leaf, const T* panel) const {
    if constexpr (std::is_same_v<T, From>) {
      if (has_rows(tile)) return {a_.data + tile * kTile * a_.row + leaf.begin, a_.row};
    }
    return {panel + leaf.begin * kTile, leaf.length};
  }

  void run_tile(const T* panel, std::int64_t row, std::int64_t column, Sums& sums) {
    std::size_t count = 0;
    for (const Leaf& leaf : leaves_) {
      const auto [a, distance] = rows_of(row, leaf, panel);
      if (sums.size() == count) sums.emplace_back(static_cast<std::size_t>(kTile * kTile));
      T* tile = sums[count].data();
      if (leaf.length == 0) std::fill_n(tile, kTile * kTile, T(0));
      if (leaf.length > 0) {
        multiply_block(kTile, kTile, leaf.length, a, distance, packed(column) + leaf.begin * kTile, tile,
                       /*adds=*/false);
      }
      for (std::int64_t m = 0; m < leaf.merges; ++m, --count) {
        T* left = sums[count - 1].data();
        const T* right = sums[count].data();
        for (std::int64_t i = 0; i < kTile * kTile; ++i) left[i] += right[i];
      }
      ++count;
    }
    for (std::size_t node = 0; node < count; ++node) {
      store(sums[node].data(), row * kTile, column * kTile, out_ + static_cast<std::int64_t>(node) * out_node_);
    }
  }

  void store(const T* tile, std::int64_t row, std::int64_t column, T* out) const {
    const auto m = std::min(kTile, a_.rows - row), n = std::min(kTile, b_.columns - column);
    for (std::int64_t i = 0; i < m; ++i) {
      std::copy_n(tile + i * kTile, n, out + (row + i) * b_.columns + column);
    }
  }

  Matrix<T, From> a_, b_;
  const std::vector<Leaf>& leaves_;
  T* out_;
  std::int64_t out_node_;
  std::unique_ptr<T[]> packed_;
};

// Local ranges of the leaves: row-major over local indices, with blocks along the last dimension.
void add_ranges(Contracted& k, std::int64_t local_last) {
  std::int64_t local = 0, in_row = 0;
  for (const auto& s : k.leaves.own) {
    for (std::int64_t leaf = s.offset; leaf < s.offset + s.length; ++leaf) {
      const std::int64_t length = std::min(k.block, local_last - in_row);
      k.ranges.push_back({leaf, local, length});
      local += length;
      in_row = (in_row + length) % local_last;
    }
  }
}

// The kernel of the CPU.
at::Tensor multiply_leaves(const at::Tensor& a, const at::Tensor& b, at::IntArrayRef lengths, at::IntArrayRef merges) {
  const auto leaves = leaf_products::leaves_of(lengths.data(), merges.data(), lengths.size());
  const auto nodes = empty_nodes(a, b, merges);
  if (nodes.numel() == 0) return nodes;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, a.scalar_type(), "a product in a BitIdentical scope", [&] {
    using Sum = at::opmath_type<scalar_t>;
    for (std::int64_t i = 0; i < a.size(0); ++i) {
      auto* out = nodes.mutable_data_ptr<Sum>() + i * nodes.stride(1);
      Product<Sum, scalar_t>(a[i], b[i], leaves, out, nodes.stride(0)).run();
    }
  });
  return nodes;
}

TORCH_LIBRARY_IMPL(dtensor, CPU, m) { m.impl("multiply_leaves", multiply_leaves); }

TORCH_LIBRARY_IMPL(dtensor, Meta, m) {
  m.impl("multiply_leaves", [](const at::Tensor& a, const at::Tensor& b, at::IntArrayRef, at::IntArrayRef merges) {
    return empty_nodes(a, b, merges);
  });
}

}  // namespace

void multiply_block(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t row, const float* b,
                    float* c, bool adds) {
  at::native::cpublas::brgemm(m, n, k, row, n, n, adds, a, b, c);
}

void multiply_block(std::int64_t m, std::int64_t n, std::int64_t k, const double* a, std::int64_t row, const double* b,
                    double* c, bool adds) {
  if (!adds) std::fill(c, c + m * n, 0.0);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t p = 0; p < k; ++p) {
      const double factor = a[i * row + p];
      for (std::int64_t j = 0; j < n; ++j) c[i * n + j] += factor * b[p * n + j];
    }
  }
}

void check_values(const LocalCall& call, const at::Tensor& t) {
  TORCH_CHECK_NOT_IMPLEMENTED(!is_simulated(t), call.info.name(), " in a BitIdentical scope: no dry runs");
}

Contracted contracted_of(const MeshImpl& mesh, const TensorSpec* spec, at::IntArrayRef sizes, at::IntArrayRef dims) {
  Contracted k;
  k.block = bit_identical_block();
  k.leaves = leaves_of(mesh, spec, sizes, dims, k.block);
  const std::int64_t last = dims.back();
  add_ranges(k, total_length(own_segments(spec, last, sizes[static_cast<std::size_t>(last)])));
  return k;
}

at::Tensor empty_nodes(const at::Tensor& a, const at::Tensor& b, at::IntArrayRef merges) {
  return at::empty({std::ssize(merges) - c10::sum_integers(merges), a.size(0), a.size(1), b.size(2)},
                   a.options().dtype(sum_type(a.scalar_type())));
}

at::Tensor multiply_nodes(const at::Tensor& a, const at::Tensor& b, const Contracted& k) {
  static const auto op = library_operator<decltype(multiply_leaves)>("dtensor::multiply_leaves");
  std::vector<std::int64_t> lengths, merges;
  NodeStack nodes(k.leaves.count);
  for (const auto& range : k.ranges) {
    nodes.push({0, range.leaf});
    lengths.push_back(range.length), merges.push_back(0);
    while (nodes.merge()) ++merges.back();
  }
  if (a.dim() == 3) return op.call(a, b, lengths, merges);
  return op.call(a.unsqueeze(0), b.unsqueeze(0), lengths, merges).squeeze(1);
}

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, const Contracted& k) {
  return complete(multiply_nodes(a, b, k), k.leaves);
}

}  // namespace dtensor::bit_identical
