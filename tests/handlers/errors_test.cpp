// Bad input: one error, the same on every rank, from the operator itself where it can judge the whole call; and nothing
// of it is remembered.
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Call = std::function<void(const DeviceMesh&)>;

// What each rank of a mesh of three says; a rank that raises does not leave, so that one alone is told from all.
std::vector<std::string> errors_of(const Call& call) {
  std::vector<std::string> errors(3);
  on_mesh({3}, [&](const DeviceMesh& mesh) {
    errors[static_cast<std::size_t>((*mesh.coordinate())[0])] = error_of([&] { call(mesh); });
  });
  return errors;
}

void expect_same_error(const Call& call, const std::string& part) {
  for (const auto& error : errors_of(call)) EXPECT_NE(error.find(part), std::string::npos) << error;
}

at::Tensor split(const DeviceMesh& mesh, const Shape& sizes, at::ScalarType type = at::kFloat, std::int64_t dim = 0) {
  return distribute_tensor(at::ones(sizes, type), mesh, {Shard(dim)});
}

// signbit's meta kernel refuses complex numbers by a NotImplementedError, which is no lack of a kernel.
TEST(Errors, AKernelsRefusalIsNoLackOfAMetaKernel) {
  expect_same_error([](const DeviceMesh& mesh) { at::signbit(split(mesh, {6}, at::kComplexFloat)); }, "signbit");
  on_mesh({3}, [](const DeviceMesh& mesh) {
    const at::Tensor signs = at::signbit(split(mesh, {5, 2}));
    EXPECT_EQ(signs.scalar_type(), at::kBool);
    EXPECT_EQ(DTensor(signs).full_tensor().scalar_type(), at::kBool);
  });
}

TEST(Errors, TheMeanOfIntegersIsRefused) {
  expect_same_error([](const DeviceMesh& mesh) { at::mean(split(mesh, {6}, at::kLong)); }, "mean(): could not infer");
  expect_same_error([](const DeviceMesh& mesh) { at::mean(split(mesh, {6, 2}, at::kLong), {1}); }, "mean(): could not");
}

// Rules look at dimensions that these have not.
TEST(Errors, TooFewDimensionsAreAnErrorAndNoCrash) {
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

}  // namespace
}  // namespace dtensor::test
