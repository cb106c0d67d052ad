// Invalid input raises one error, equal on every rank, from the operator itself if it can check the full call. Nothing
// of the call is cached.
#include <gtest/gtest.h>

#include "local_kernels/same_error.h"

namespace dtensor::test {
namespace {

// The meta kernel of signbit refuses complex numbers with a NotImplementedError, although the meta kernel exists.
TEST(Errors, NotImplementedErrorOfAMetaKernelIsReported) {
  expect_same_error([](const DeviceMesh& mesh) { at::signbit(split(mesh, {6}, at::kComplexFloat)); }, "signbit");
  on_mesh({3}, [](const DeviceMesh& mesh) {
    const at::Tensor signs = at::signbit(split(mesh, {5, 2}));
    EXPECT_EQ(signs.scalar_type(), at::kBool);
    EXPECT_EQ(DTensor(signs).full_tensor().scalar_type(), at::kBool);
  });
}

TEST(Errors, MeanOfIntegersIsRefused) {
  expect_same_error([](const DeviceMesh& mesh) { at::mean(split(mesh, {6}, at::kLong)); }, "mean(): could not infer");
  expect_same_error([](const DeviceMesh& mesh) { at::mean(split(mesh, {6, 2}, at::kLong), {1}); }, "mean(): could not");
}

TEST(Errors, MaximumOfEmptyTensorsIsRefused) {
  const std::vector<std::function<void(const at::Tensor&)>> calls = {
      [](const at::Tensor& x) { at::max(x); },        [](const at::Tensor& x) { at::min(x); },
      [](const at::Tensor& x) { at::max(x, 0); },     [](const at::Tensor& x) { at::min(x, 0, true); },
      [](const at::Tensor& x) { at::amax(x, {0}); },  [](const at::Tensor& x) { at::amin(x); },
      [](const at::Tensor& x) { at::argmax(x); },     [](const at::Tensor& x) { at::argmin(x, 0); },
      [](const at::Tensor& x) { at::aminmax(x, 0); },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(i);
    for (const Shape& sizes : {Shape{0}, Shape{0, 3}}) {
      EXPECT_THROW(calls[i](at::zeros(sizes)), c10::Error);
      const auto errors = errors_of([&](const DeviceMesh& mesh) { calls[i](split(mesh, sizes)); });
      for (const auto& error : errors) EXPECT_EQ(error, errors[0]);
      EXPECT_NE(errors[0], "no error");
    }
  }
}

TEST(Errors, LayerNormWithMismatchedShapeIsRefused) {
  const at::Tensor none;
  for (const bool weighted : {false, true}) {
    expect_same_error(
        [&](const DeviceMesh& mesh) {
          at::layer_norm(split(mesh, {6, 4}).t(), {5}, weighted ? at::ones({5}) : none, none);
        },
        "Given normalized_shape=[5]");
  }
  expect_same_error([&](const DeviceMesh& mesh) { at::layer_norm(split(mesh, {6}), {6}, at::ones({4}), none); },
                    "Expected weight to be of same shape as normalized_shape");
  expect_same_error([&](const DeviceMesh& mesh) { at::layer_norm(split(mesh, {6}), {6}, none, at::ones({4})); },
                    "Expected bias to be of same shape as normalized_shape");
}

// ATen locates the invalid matrix, on a tensor without memory.
TEST(Errors, NotPositiveDefiniteMatrixRaisesAsOnOneDevice) {
  expect_same_error(
      [](const DeviceMesh& mesh) {
        at::Tensor a = at::eye(3).repeat({4, 1, 1});
        a[2][0][0] = -1;
        at::linalg_cholesky(distribute_tensor(a, mesh, {Shard(0)}));
      },
      "linalg.cholesky: (Batch element 2)");
}

// The error names the matrix of the batch and the element, for any part of the batch on a rank.
TEST(Errors, SingularFactorRaisesAsOnOneDevice) {
  at::Tensor factors = at::eye(3).repeat({4, 1, 1});
  factors[2][1][1] = 0;
  for (const Placement placement : {Shard(0), Shard(1), Replicate(), Partial()}) {
    expect_same_error(
        [&](const DeviceMesh& mesh) { at::cholesky_inverse(distribute_tensor(factors, mesh, {placement})); },
        "cholesky_inverse: (Batch element 2): The diagonal element 2 is zero");
  }
  expect_same_error(
      [&](const DeviceMesh& mesh) { at::cholesky_inverse(distribute_tensor(factors[2], mesh, {Shard(0)})); },
      "cholesky_inverse: The diagonal element 2 is zero");
  on_mesh({3}, [&](const DeviceMesh& mesh) {
    const at::Tensor good = at::eye(3).repeat({4, 1, 1}).mul(2), none = at::ones({4, 0, 0});
    expect_close(at::cholesky_inverse(distribute_tensor(good, mesh, {Shard(0)})), at::cholesky_inverse(good),
                 "inverse");
    EXPECT_EQ(at::cholesky_inverse(distribute_tensor(none, mesh, {Shard(0)})).numel(), 0);
  });
}

// Rules read dimensions that these operands lack.
TEST(Errors, TooFewDimensionsAreAnError) {
  const auto vector = [](const DeviceMesh& mesh) { return split(mesh, {4}); };
  const auto number = [](const DeviceMesh& mesh) {
    return at::Tensor(distribute_tensor(at::ones({}), mesh, {Replicate()}));
  };
  const std::vector<std::function<void(const at::Tensor&)>> calls = {
      [](const at::Tensor& x) { at::linalg_eig(x); },
      [](const at::Tensor& x) { at::geqrf(x); },
      [](const at::Tensor& x) { at::cholesky_inverse(x); },
      [](const at::Tensor& x) { at::linalg_householder_product(x, x); },
      [](const at::Tensor& x) { at::ormqr(x, x, x); },
      [](const at::Tensor& x) { at::linalg_pinv(x); },
      [](const at::Tensor& x) {
        at::col2im(x, {4, 5}, {2, 2}, {1, 1}, {0, 0}, {1, 1});
      },
      [](const at::Tensor& x) {
        at::im2col(x, {2, 2}, {1, 1}, {0, 0}, {1, 1});
      },
      [](const at::Tensor& x) {
        at::reflection_pad2d(x, {1, 1, 1, 1});
      },
      [](const at::Tensor& x) { at::native_batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5); },
      [](const at::Tensor& x) {
        at::adaptive_avg_pool2d(x, {2, 2});
      },
      [](const at::Tensor& x) { at::max_pool3d(x, {2}); },
      [](const at::Tensor& x) { at::_scaled_dot_product_flash_attention_for_cpu(x, x, x); },
  };
  for (const auto& make : {std::function<at::Tensor(const DeviceMesh&)>(vector), {number}}) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const auto errors = errors_of([&](const DeviceMesh& mesh) { calls[i](make(mesh)); });
      for (const auto& error : errors) EXPECT_EQ(error, errors[0]) << i;
      EXPECT_NE(errors[0], "no error") << i;
    }
  }
}

// Ranks without elements would accept what a kernel refuses for its dtypes or sizes.
TEST(Errors, RankWithoutElementsRaisesTheSameError) {
  const auto one_row = [](const DeviceMesh& mesh, at::ScalarType type) { return split(mesh, {1, 2, 4, 4, 4}, type); };
  const std::vector<std::pair<Call, const char*>> calls = {
      {[&](const DeviceMesh& m) { at::max_pool3d(one_row(m, at::kBool), {2}); }, "not implemented for 'Bool'"},
      {[&](const DeviceMesh& m) {
         at::max_unpool3d(one_row(m, at::kFloat), split(m, {1, 2, 4, 4, 2}, at::kLong), {8, 8, 8}, {2, 2, 2},
                          {0, 0, 0});
       },
       "Expected shape of indices"},
      {[&](const DeviceMesh& m) {
         at::conv3d(one_row(m, at::kFloat), split(m, {3, 2, 2, 2, 2}, at::kDouble));
       },
       "type"},
      {[&](const DeviceMesh& m) {
         at::conv3d(one_row(m, at::kFloat), split(m, {3, 5, 2, 2, 2}));
       },
       "to have 5 channels"},
      {[&](const DeviceMesh& m) {
         at::conv_transpose3d(one_row(m, at::kFloat), split(m, {5, 3, 2, 2, 2}));
       },
       "5 channels"},
      {[&](const DeviceMesh& m) {
         at::conv3d(one_row(m, at::kFloat), split(m, {3, 2, 9, 9, 9}));
       },
       "Kernel size can't be greater"},
      {[&](const DeviceMesh& m) { at::max_pool3d(one_row(m, at::kFloat), {9}); }, "size"},
      {[&](const DeviceMesh& m) {
         at::max_unpool2d(split(m, {1, 2, 4, 4}), split(m, {1, 2, 4, 2}, at::kLong), {8, 8});
       },
       "Expected shape of indices"},
      {[&](const DeviceMesh& m) {
         at::gather(split(m, {2, 3}), 1, split(m, {1, 2, 3}, at::kLong));
       },
       "dimensions"},
      {[&](const DeviceMesh& m) {
         at::layer_norm(split(m, {1, 4}), {4}, split(m, {4}), split(m, {3}));
       },
       "bias"},
  };
  for (const auto& [call, part] : calls) expect_same_error(call, part);
}

// One device accepts these calls, so every rank must.
TEST(Errors, EmptyBatchesAndIndicesAreAccepted) {
  on_mesh({3}, [](const DeviceMesh& mesh) {
    expect_close(at::avg_pool2d(split(mesh, {0, 4, 6, 6}, at::kDouble, 1), {2, 2}),
                 at::zeros({0, 4, 3, 3}, at::kDouble), "avg_pool2d");
    expect_close(at::avg_pool3d(split(mesh, {0, 4, 6, 6, 6}, at::kDouble, 1), {2, 2, 2}),
                 at::zeros({0, 4, 3, 3, 3}, at::kDouble), "3d");
    const at::Tensor x = split(mesh, {4, 3}, at::kDouble);
    expect_close(at::gather(x, 0, split(mesh, {0}, at::kLong)),
                 at::gather(at::ones({4, 3}, at::kDouble), 0, at::zeros({0}, at::kLong)), "gather");
    const at::Tensor none = distribute_tensor(at::zeros({2, 0, 5}, at::kLong), mesh, {Shard(0)});
    expect_close(at::gather(x, 1, none), at::gather(at::ones({4, 3}, at::kDouble), 1, at::zeros({2, 0, 5}, at::kLong)),
                 "3-d index");
  });
}

TEST(Errors, CallsThatOneDeviceRefusesAreRefused) {
  const auto rows = [](const DeviceMesh& m, const Shape& s) { return split(m, s); };
  expect_same_error(
      [&](const DeviceMesh& m) {
        at::index_reduce(rows(m, {4, 3}), 0, split(m, {2}, at::kLong).zero_(), rows(m, {2, 5}), "prod");
      },
      "source tensor shape must match self tensor shape");
  expect_same_error(
      [&](const DeviceMesh& m) {
        at::index_reduce(rows(m, {4, 3}), 0, split(m, {2}, at::kLong).zero_(), rows(m, {3, 3}), "prod");
      },
      "index_reduce");
  expect_same_error(
      [&](const DeviceMesh& m) {
        at::Tensor mean = split(m, {3}), variance = split(m, {3});
        at::_batch_norm_with_update(rows(m, {0, 3, 2}), {}, {}, mean, variance, 0.1, 1e-5);
      },
      "at least one element");
  expect_same_error([&](const DeviceMesh& m) { at::min(rows(m, {0, 3})); }, "numel() == 0");
}

// out= tensors without elements, or with other dimensions, do not determine the result.
TEST(Errors, OutOfOtherSizesEqualsOneDevice) {
  on_mesh({3}, [](const DeviceMesh& mesh) {
    const auto place = [&](const at::Tensor& t, std::int64_t dim) {
      return at::Tensor(distribute_tensor(t, mesh, {Shard(dim)}));
    };
    const auto empty = [&] { return place(at::empty({0}, at::kDouble), 0); };
    const at::Tensor x = at::arange(60, at::kDouble).reshape({4, 5, 3}), target = at::arange(4).remainder(3),
                     rows = x.select(1, 0);
    at::Tensor out = empty();
    expect_close(at::sinh_out(out, place(x, 1)), at::sinh(x), "sinh");
    out = empty();
    expect_close(at::abs_out(out, place(x, 0)), at::abs(x), "abs");
    out = place(at::empty({1}, at::kDouble), 0);
    expect_close(at::upsample_nearest1d_out(out, place(x, 0), {6}), at::upsample_nearest1d(x, {6}), "upsample");
    out = empty();
    expect_close(at::narrow_copy_out(out, place(x, 0), 1, 2, 2), at::narrow_copy(x, 1, 2, 2), "narrow_copy");
    out = place(at::empty({}, at::kDouble).reshape({1}), 0);
    const at::Tensor loss = at::multi_margin_loss_out(out, place(rows, 0), place(target, 0));
    expect_close(loss, at::multi_margin_loss(rows, target), "multi_margin_loss");
    expect_close(at::any(place(x, 0), at::IntArrayRef{}), at::any(x, at::IntArrayRef{}), "any of no dimension");
  });
}

// Ragged parts belong to one size: an out= tensor of another size, regular or ragged, cannot have them.
TEST(Errors, RaggedResultsInOutOfOtherSizes) {
  const at::Tensor x = at::eye(3, at::kDouble).expand({2, 3, 3}).clone().mul_(4);
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto ragged = [&](const at::Tensor& t, const Shape& parts) {
      return at::Tensor(distribute_tensor(t, mesh, {RaggedShard(0, parts)}));
    };
    at::Tensor lower = ragged(at::zeros_like(x), {2, 0}), info = at::empty({0}, at::kInt);
    at::linalg_cholesky_ex_out(lower, info, ragged(x, {2, 0}));
    expect_close(lower, at::linalg_cholesky(x), "L");
    expect_close(info, at::zeros({2}, at::kInt), "info");
    at::Tensor out = ragged(at::zeros({5, 3, 3}, at::kDouble), {1, 4});
    at::sinh_out(out, ragged(x, {2, 0}));
    expect_close(out, at::sinh(x), "sinh");
    EXPECT_EQ(DTensor(out).placements(), Placements{RaggedShard(0, Shape{2, 0})});
  });
}

}  // namespace
}  // namespace dtensor::test
