// Each tile has 64 rows and 64 columns; beyond the edges it holds zeros. So the instructions for an element do not
// depend on where it is. The length of a leaf depends on the global size only.
#include "ops/local_kernels/bit_identical/tiles.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include "internal/bit_identical.h"
#include "internal/simulated.h"
#include "ops/local_kernels/local_args.h"

namespace dtensor::bit_identical {
namespace {

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

template <class T, class From>
class Product {
 public:
  Product(const at::Tensor& a, const at::Tensor& b, const Contracted& k, const at::Tensor& nodes)
      : a_(a), b_(b), k_(k), out_(nodes.mutable_data_ptr<T>()) {}

  void run() {
    const std::int64_t rows = tiles_of(a_.rows), columns = tiles_of(b_.columns);
    packed_ = memory_of(columns);
    at::parallel_for(0, columns * std::ssize(k_.ranges), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        pack_columns(i % columns, k_.ranges[static_cast<std::size_t>(i / columns)]);
    });
    at::parallel_for(0, rows * columns, 1, [&](std::int64_t begin, std::int64_t end) {
      const auto panel = memory_of(1);
      TreeSum<T> sum(k_.leaves.count, kTile * kTile);
      for (std::int64_t i = begin; i < end; ++i) {
        if ((i == begin || i % columns == 0) && !has_rows(i / columns)) pack_rows(i / columns, panel.get());
        run_tile(panel.get(), i / columns, i % columns, sum);
      }
    });
  }

 private:
  // Whether the rows of a tile can be read where they are.
  bool has_rows(std::int64_t tile) const {
    return std::is_same_v<T, From> && a_.column == 1 && (tile + 1) * kTile <= a_.rows;
  }

  // Memory of tiles [kTile, k].
  std::unique_ptr<T[]> memory_of(std::int64_t tiles) const {
    return std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(tiles * kTile * a_.columns));
  }
  T* packed(std::int64_t column) const { return packed_.get() + column * kTile * a_.columns; }

  void pack_columns(std::int64_t tile, const Contracted::Range& range) const {
    b_.copy(range.begin, tile * kTile, range.length, kTile, packed(tile) + range.begin * kTile);
  }

  void pack_rows(std::int64_t tile, T* panel) const {
    for (const auto& range : k_.ranges) {
      a_.copy(tile * kTile, range.begin, kTile, range.length, panel + range.begin * kTile);
    }
  }

  // A leaf's rows of a tile: where they are, or in the packed panel. Then the distance of rows.
  std::pair<const T*, std::int64_t> rows_of(std::int64_t tile, const Contracted::Range& range, const T* panel) const {
    if constexpr (std::is_same_v<T, From>) {
      if (has_rows(tile)) return {a_.data + tile * kTile * a_.row + range.begin, a_.row};
    }
    return {panel + range.begin * kTile, range.length};
  }

  void run_tile(const T* panel, std::int64_t row, std::int64_t column, TreeSum<T>& sum) {
    sum.clear();
    for (const auto& range : k_.ranges) {
      const auto [a, distance] = rows_of(row, range, panel);
      T* tile = sum.next();
      if (range.length == 0) std::fill_n(tile, kTile * kTile, T(0));
      if (range.length > 0) {
        multiply_block(kTile, kTile, range.length, a, distance, packed(column) + range.begin * kTile, tile,
                       /*adds=*/false);
      }
      sum.add({0, range.leaf}, tile);
    }
    for (std::size_t node = 0; node < sum.size(); ++node) {
      store(sum.values(node), row * kTile, column * kTile,
            out_ + static_cast<std::int64_t>(node) * a_.rows * b_.columns);
    }
  }

  void store(const T* tile, std::int64_t row, std::int64_t column, T* out) const {
    const auto m = std::min(kTile, a_.rows - row), n = std::min(kTile, b_.columns - column);
    for (std::int64_t i = 0; i < m; ++i) {
      std::copy_n(tile + i * kTile, n, out + (row + i) * b_.columns + column);
    }
  }

  Matrix<T, From> a_, b_;
  const Contracted& k_;
  T* out_;
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

at::Tensor multiply_nodes(const at::Tensor& a, const at::Tensor& b, const Contracted& k) {
  const auto nodes = at::empty({std::ssize(nodes_of(k.leaves.own, k.leaves.count)), a.size(0), b.size(1)},
                               a.options().dtype(sum_type(a.scalar_type())));
  if (nodes.numel() > 0) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, a.scalar_type(), "a product in a BitIdentical scope",
                                    [&] { Product<at::opmath_type<scalar_t>, scalar_t>(a, b, k, nodes).run(); });
  }
  return nodes;
}

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, const Contracted& k) {
  return complete(multiply_nodes(a, b, k), k.leaves);
}

}  // namespace dtensor::bit_identical
