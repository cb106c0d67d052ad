// What has no bit-identical form is an error with its name on every rank, in the scope only.
#include "bit_identical/bits.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

struct Refused {
  const char* name;  // part of the error
  std::function<at::Tensor(const at::Tensor&)> run;
};

const std::vector<Refused>& refused() {
  static const std::vector<Refused> all{
      {"aten::cumsum", [](const at::Tensor& x) { return x.cumsum(0); }},
      {"aten::var", [](const at::Tensor& x) { return x.var(); }},
      {"aten::linalg_vector_norm", [](const at::Tensor& x) { return at::linalg_vector_norm(x, 2); }},
      {"aten::_fft_r2c", [](const at::Tensor& x) { return at::fft_rfft(x); }},
      {"aten::cumprod", [](const at::Tensor& x) { return x.cumprod(0); }},
      {"aten::logsumexp", [](const at::Tensor& x) { return at::logsumexp(x, 1); }},
      {"aten::prod", [](const at::Tensor& x) { return x.prod(); }},
      {"aten::upsample_linear1d_backward",
       [](const at::Tensor& x) {
         return at::upsample_linear1d_backward(x.view({8, 2, 4}), {4}, {8, 2, 2}, /*align_corners=*/false);
       }},
      {"aten::upsample_trilinear3d_backward",
       [](const at::Tensor& x) {
         return at::upsample_trilinear3d_backward(x.view({8, 1, 2, 2, 2}), {2, 2, 2}, {8, 1, 1, 1, 1}, false);
       }},
      {"aten::index_put",
       [](const at::Tensor& x) { return at::index_put(x, {(x > 9).to(at::kLong).select(1, 0)}, x); }},
  };
  return all;
}

TEST(BitIdentical, OperatorsWithoutAFormAreErrorsWithTheirName) {
  for (const Shape& shape : {Shape{1}, Shape{2}}) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      const at::Tensor x = distribute_tensor(at::ones({8, 8}), mesh, {Shard(0)});
      for (const auto& [name, run] : refused()) {
        std::string error;
        try {
          const BitIdentical scope;
          run(x);
        } catch (const c10::Error& e) {
          error = e.what_without_backtrace();
        }
        EXPECT_NE(error.find(name), std::string::npos) << name << ": " << error;
        EXPECT_NE(error.find("bit-identical"), std::string::npos) << name << ": " << error;
        EXPECT_NO_THROW(run(x)) << name;
      }
    });
  }
}

TEST(BitIdentical, SharesOfASumAreRefused) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor shares = DTensor::from_local(at::ones({4}), mesh, {Partial()});
    const BitIdentical scope;
    EXPECT_THROW(shares + 1, c10::Error);
    EXPECT_THROW(DTensor(shares).full_tensor(), c10::Error);
    const auto count = at::ones({1}, at::kLong);
    EXPECT_NO_THROW(mesh.communicator().all_reduce(count, ReduceOp::sum).wait());
    EXPECT_THROW(mesh.communicator().all_reduce(at::ones({1}), ReduceOp::sum).wait(), c10::Error);
    EXPECT_NO_THROW(mesh.communicator().all_reduce(at::ones({1}), ReduceOp::max).wait());
  });
}

TEST(BitIdentical, BlockSizesOutOfRangeAreRefused) {
  EXPECT_THROW(BitIdentical(4), c10::Error);
  EXPECT_THROW(BitIdentical(1024), c10::Error);
  EXPECT_FALSE(BitIdentical::current());
  const BitIdentical scope(64);
  EXPECT_TRUE(BitIdentical::current());
}

TEST(BitIdentical, DecisionsOfTheScopeAreNotUsedOutside) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(at::ones({8, 64}), mesh, {Shard(1)});
    const at::Tensor w = distribute_tensor(at::ones({64, 8}), mesh, {Shard(0)});
    const auto is_partial = [&] { return DTensor(at::mm(x, w)).placements()[0].is_partial(); };
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(is_partial());
      const BitIdentical scope;
      EXPECT_FALSE(is_partial());
    }
  });
}

}  // namespace
}  // namespace dtensor::test
