// Invalid convolutions and pooling, found by tools/fuzz.
#include "local_kernels/same_error.h"

namespace dtensor::test {
namespace {

// ATen's kernels write to the positions that the indices name.
TEST(WindowMistakes, PoolingBackwardChecksIndices) {
  const auto indices = [](const DeviceMesh& m, std::int64_t value, std::int64_t dim) {
    return distribute_tensor(at::full({3, 3, 3, 2}, value, at::kLong), m, {Shard(dim)});
  };
  for (const std::int64_t dim : {0, 1}) {
    const auto expect_rejected = [&](const auto& backward) {
      expect_same_error(
          [&](const DeviceMesh& m) {
            backward(split(m, {3, 3, 2, 2}, at::kFloat, dim), split(m, {3, 3, 4, 4}, at::kFloat, dim),
                     distribute_tensor(at::full({3, 3, 2, 2}, 16, at::kLong), m, {Replicate()}));
          },
          "index 16 is out of bounds for size 16");
    };
    expect_rejected(
        [](const auto& grad, const auto& x, const auto& at) { at::adaptive_max_pool2d_backward(grad, x, at); });
    expect_rejected([](const auto& grad, const auto& x, const auto& at) {
      at::max_pool2d_with_indices_backward(grad, x, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false, at);
    });
    expect_rejected([](const auto& grad, const auto& x, const auto& at) {
      at::fractional_max_pool2d_backward(grad, x, {2, 2}, {2, 2}, at);
    });
  }
  for (const std::int64_t value : {-1, 24, 40}) {
    expect_same_error(
        [&](const DeviceMesh& m) {
          at::max_pool2d_with_indices_backward(split(m, {3, 3, 3, 2}, at::kFloat, 2),
                                               split(m, {3, 3, 6, 4}, at::kFloat, 2), {2, 2}, {2, 2}, {0, 0}, {1, 1},
                                               false, indices(m, value, 2));
        },
        "an index lies outside of its window");
  }
}

TEST(WindowMistakes, PoolingRefusesEmptyPlanes) {
  const auto pool = [](const Shape& sizes) {
    return [sizes](const DeviceMesh& m) {
      at::max_pool3d_with_indices(split(m, sizes), {3, 3, 3}, {2, 2, 2}, {0, 0, 0}, {1, 1, 1}, true);
    };
  };
  expect_same_error(pool({1, 0, 3, 6, 5}), "non-zero size for non-batch dimensions");
  expect_same_error(pool({1, 4, 1, 0, 1}), "non-zero size for non-batch dimensions");
  expect_same_error(pool({4, 3, 3, 4, 3, 1}), "4D or 5D");
  expect_same_error(pool({0, 4, 2, 1, 4}), "output size is too small");
}

TEST(WindowMistakes, ConvolutionBackwardChecksTheBatch) {
  expect_same_error(
      [](const DeviceMesh& m) {
        at::convolution_backward(split(m, {1, 3, 6}), split(m, {0, 3, 4}), split(m, {3, 3, 3}), at::IntArrayRef{3}, {2},
                                 {2}, {1}, true, {1}, 1, {true, true, true});
      },
      "upstream gradient of sizes [1, 3, 6]");
}

// Each shard of a split spatial dimension is written to its own part of out=.
TEST(WindowMistakes, ShardedSpatialDimsWriteToOut) {
  const at::Tensor x = at::randn({2, 3, 7, 6}, at::kDouble), w = at::randn({3, 2, 3, 3}, at::kDouble);
  on_mesh({3}, [&](const DeviceMesh& m) {
    const auto check = [&](const auto& op) {
      at::Tensor expected = at::empty({0}, at::kDouble);
      op(x, w, expected);
      at::Tensor placed = distribute_tensor(at::zeros_like(expected), m, {Shard(2)});
      op(distribute_tensor(x, m, {Shard(2)}), distribute_tensor(w, m, {Replicate()}), placed);
      expect_close(placed, expected, "out=");
    };
    check([](const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
      at::convolution_out(out, a, b, {}, {2, 2}, {1, 1}, {1, 1}, true, {1, 1}, 1);
    });
    check([](const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
      at::convolution_out(out, a, b.transpose(0, 1), {}, {2, 2}, {1, 1}, {1, 1}, false, {0, 0}, 1);
    });
    check([](const at::Tensor& a, const at::Tensor&, at::Tensor& out) {
      at::avg_pool2d_out(out, a, {3, 3}, {2, 2}, {1, 1});
    });
    check([](const at::Tensor& a, const at::Tensor&, at::Tensor& out) {
      at::Tensor indices = at::zeros_like(out, at::kLong);
      at::max_pool2d_with_indices_out(out, indices, a, {3, 3}, {2, 2}, {1, 1});
    });
    const auto gradients = [](const at::Tensor& a, const at::Tensor& b, at::Tensor& of_input, at::Tensor& of_weight) {
      at::Tensor of_bias = at::zeros({2}, a.options());
      at::convolution_backward_out(of_input, of_weight, of_bias, at::ones({2, 2, 14, 12}, a.options()), a, b,
                                   at::IntArrayRef{2}, {2, 2}, {1, 1}, {1, 1}, true, {1, 1}, 1, {true, true, true});
    };
    check([&](const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
      at::Tensor of_weight = at::zeros_like(b);
      gradients(a, b, out, of_weight);
    });
    check([&](const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
      at::Tensor of_input = at::zeros_like(a);
      gradients(a, b, of_input, out);
    });
  });
}

}  // namespace
}  // namespace dtensor::test
