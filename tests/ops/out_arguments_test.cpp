// out= of operators that ATen composes of others: the given tensor has the result afterwards, in its own placements.
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

struct Case {
  const char* name;
  std::function<at::Tensor(const at::Tensor&)> returned;
  std::function<void(at::Tensor&, const at::Tensor&)> written;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"matrix_rank",
       [](const at::Tensor& x) { return at::linalg_matrix_rank(x, std::optional<double>(), std::nullopt, true); },
       [](at::Tensor& out, const at::Tensor& x) {
         at::linalg_matrix_rank_out(out, x, std::optional<double>(), std::nullopt, true);
       }},
      {"matrix_rank with a tolerance", [](const at::Tensor& x) { return at::linalg_matrix_rank(x, 0.5, false); },
       [](at::Tensor& out, const at::Tensor& x) { at::linalg_matrix_rank_out(out, x, 0.5, false); }},
      {"matmul", [](const at::Tensor& x) { return at::matmul(x, x[0]); },
       [](at::Tensor& out, const at::Tensor& x) { at::matmul_out(out, x, x[0]); }},
      {"eigvals", [](const at::Tensor& x) { return at::linalg_eigvals(x); },
       [](at::Tensor& out, const at::Tensor& x) { at::linalg_eigvals_out(out, x); }},
  };
  return all;
}

TEST(GivenResults, OutHasTheResult) {
  Draw draw(11);
  const auto factor = draw.normal({3, 4, 2});
  const auto x = at::matmul(factor, factor.transpose(1, 2));  // Symmetric, of rank 2.
  for (const auto& [name, returned, written] : cases()) {
    const auto expected = returned(x);
    on_mesh({2}, [&, &written = written, &name = name](const DeviceMesh& mesh) {
      for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
        const auto placed = distribute_tensor(x, mesh, {placement});
        for (const Shape& sizes : {expected.sizes().vec(), Shape{0}}) {
          at::Tensor out = zeros(sizes, mesh, {Shard(0)}, expected.scalar_type());
          written(out, placed);
          const bool same_sizes = Shape(expected.sizes().vec()) == sizes;
          EXPECT_EQ(DTensor(out).placements(), Placements{same_sizes ? Shard(0) : Replicate()}) << name;
          ASSERT_EQ(out.sizes(), expected.sizes()) << name;
          EXPECT_TRUE(at::allclose(DTensor(out).full_tensor(), expected)) << name << " " << placement.str();
        }
      }
    });
  }
}

TEST(GivenResults, LosingGradientsOrDtypesIsRefused) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::eye(4, at::kDouble), mesh, {Shard(0)});
    at::Tensor out = zeros({4, 4}, mesh, {}, at::kDouble), full = zeros({4, 4}, mesh, {}, at::kLong);
    EXPECT_NE(error_of([&] { at::matmul_out(out, at::Tensor(x).detach().requires_grad_(), x); }).find("matmul()"),
              std::string::npos);
    EXPECT_NE(error_of([&] { at::matmul_out(full, x, x); }).find("Long"), std::string::npos);
  });
}

}  // namespace
}  // namespace dtensor::test
