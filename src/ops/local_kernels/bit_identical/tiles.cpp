// Each tile has 64 rows and 64 columns; beyond the edges it holds zeros. So the instructions for an element do not
// depend on where it is.
#include "ops/local_kernels/bit_identical/tiles.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include "internal/bit_identical.h"
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

  // Copies `count` x kTile or kTile x `count` elements into a tile of width `width`; beyond the edges it stays as it
  // is.
  void copy(std::int64_t from_row, std::int64_t from_column, std::int64_t row_count, std::int64_t column_count,
            std::int64_t width, T* tile) const {
    const auto m = std::min(row_count, rows - from_row), n = std::min(column_count, columns - from_column);
    const From* from = data + from_row * row + from_column * column;
    if (column == 1 || row != 1) {
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) tile[i * width + j] = static_cast<T>(from[i * row + j * column]);
      }
    } else {
      for (std::int64_t j = 0; j < n; ++j) {
        for (std::int64_t i = 0; i < m; ++i) tile[i * width + j] = static_cast<T>(from[i + j * column]);
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
      : a_(a), b_(b), k_(k), out_(nodes.mutable_data_ptr<T>()), blocks_(std::ssize(k.ranges)) {}

  void run() {
    pack_columns();
    const std::int64_t rows = tiles_of(a_.rows), columns = tiles_of(b_.columns);
    at::parallel_for(0, rows * columns, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<T> panel;
      for (std::int64_t i = begin; i < end; ++i) {
        if (i == begin || i % columns == 0) panel = packed_rows(i / columns);
        run_tile(panel, i / columns, i % columns);
      }
    });
  }

 private:
  std::int64_t tile_size() const { return kTile * k_.block; }

  void pack_columns() {
    const std::int64_t columns = tiles_of(b_.columns);
    packed_.assign(static_cast<std::size_t>(columns * blocks_ * tile_size()), T(0));
    at::parallel_for(0, columns * blocks_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto& range = k_.ranges[static_cast<std::size_t>(i % blocks_)];
        b_.copy(range.begin, i / blocks_ * kTile, range.length, kTile, kTile, packed_.data() + i * tile_size());
      }
    });
  }

  std::vector<T> packed_rows(std::int64_t tile) const {
    std::vector<T> panel(static_cast<std::size_t>(blocks_ * tile_size()), T(0));
    for (std::int64_t i = 0; i < blocks_; ++i) {
      const auto& range = k_.ranges[static_cast<std::size_t>(i)];
      a_.copy(tile * kTile, range.begin, kTile, range.length, k_.block, panel.data() + i * tile_size());
    }
    return panel;
  }

  void run_tile(const std::vector<T>& panel, std::int64_t row, std::int64_t column) {
    TreeSum<T> sum(k_.leaves.count, kTile * kTile);
    for (std::int64_t i = 0; i < blocks_; ++i) {
      multiply_block(kTile, kTile, k_.block, panel.data() + i * tile_size(),
                     packed_.data() + (column * blocks_ + i) * tile_size(), sum.next(), /*adds=*/false);
      sum.add({0, k_.ranges[static_cast<std::size_t>(i)].leaf});
    }
    for (std::size_t node = 0; node < sum.size(); ++node) {
      store(sum.values(node), row * kTile, column * kTile,
            out_ + static_cast<std::int64_t>(node) * a_.rows * b_.columns);
    }
  }

  void store(const T* tile, std::int64_t row, std::int64_t column, T* out) const {
    const auto m = std::min(kTile, a_.rows - row), n = std::min(kTile, b_.columns - column);
    for (std::int64_t i = 0; i < m; ++i) {
      std::copy(tile + i * kTile, tile + i * kTile + n, out + (row + i) * b_.columns + column);
    }
  }

  Matrix<T, From> a_, b_;
  const Contracted& k_;
  T* out_;
  std::int64_t blocks_;
  std::vector<T> packed_;
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

void multiply_block(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, float* c,
                    bool adds) {
  at::native::cpublas::brgemm(m, n, k, k, n, n, adds, a, b, c);
}

void multiply_block(std::int64_t m, std::int64_t n, std::int64_t k, const double* a, const double* b, double* c,
                    bool adds) {
  if (!adds) std::fill(c, c + m * n, 0.0);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t p = 0; p < k; ++p) {
      const double factor = a[i * k + p];
      for (std::int64_t j = 0; j < n; ++j) c[i * n + j] += factor * b[p * n + j];
    }
  }
}

Contracted contracted_of(const MeshImpl& mesh, const TensorSpec* spec, at::IntArrayRef sizes, at::IntArrayRef dims) {
  Contracted k;
  k.block = bit_identical_block();
  k.leaves = leaves_of(mesh, spec, sizes, dims, k.block);
  const std::int64_t last = dims.back();
  add_ranges(k, total_length(own_segments(spec, last, sizes[static_cast<std::size_t>(last)])));
  return k;
}

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, const Contracted& k) {
  const auto nodes = at::empty({std::ssize(nodes_of(k.leaves.own, k.leaves.count)), a.size(0), b.size(1)},
                               a.options().dtype(sum_type(a.scalar_type())));
  if (nodes.numel() > 0) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, a.scalar_type(), "a product in a BitIdentical scope",
                                    [&] { Product<at::opmath_type<scalar_t>, scalar_t>(a, b, k, nodes).run(); });
  }
  return complete(nodes, k.leaves);
}

}  // namespace dtensor::bit_identical
