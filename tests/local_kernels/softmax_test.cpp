// The softmax family over a split dimension against the ATen operators: large logits, rows of -inf, NaN and empty
// shards.
#include "local_kernels/local_kernel_fixture.h"

namespace dtensor::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Logits with infinities and NaN that break naive maxima.
at::Tensor any_logits(const std::vector<std::int64_t>& sizes, at::ScalarType type) {
  auto x = at::randn(sizes) * (flip() ? 1 : 100);
  if (flip()) x.masked_fill_(at::rand(sizes).lt(0.3), -kInf);
  if (pick(0, 5) == 0) x.masked_fill_(at::rand(sizes).lt(0.1), NAN);
  if (pick(0, 5) == 0) x.masked_fill_(at::rand(sizes).lt(0.1), kInf);
  return x.to(type);
}

struct Rows {
  std::vector<std::int64_t> mesh = any_mesh();
  std::vector<std::int64_t> sizes = any_sizes(1, 3, pick(0, 3) == 0 ? 0 : 1);
  std::int64_t ndim = static_cast<std::int64_t>(sizes.size());
  std::int64_t dim = pick(0, ndim - 1);
  Placements placements = any_shards(mesh, all_dims(ndim));
  std::int64_t spelled() const { return flip() ? dim : dim - ndim; }
};

void check_forward(const std::string& op, const std::string& kernel) {
  const Rows r;
  check_case(
      {op, "", kernel, {any_logits(r.sizes, any_float()), r.spelled(), false}, {r.placements}, {r.placements}, r.mesh});
}

void check_backward(const std::string& op, const std::string& kernel, bool log) {
  const Rows r;
  const auto type = any_float();
  auto y = at::randn(r.sizes).softmax(r.dim);
  if (log) y = y.log();
  y = y.to(type);
  check_case({op,
              "",
              kernel,
              {at::randn(r.sizes).to(type), y, r.spelled(), type},
              {r.placements, r.placements},
              {r.placements},
              r.mesh});
}

RC_GTEST_PROP(Softmax, ForwardEqualsAten, ()) { check_forward("_softmax", "softmax_sharded"); }
RC_GTEST_PROP(Softmax, LogSoftmaxForwardEqualsAten, ()) { check_forward("_log_softmax", "log_softmax_sharded"); }
RC_GTEST_PROP(Softmax, SafeSoftmaxEqualsAten, ()) {
  const Rows r;
  const auto dtype = flip() ? c10::IValue(at::kDouble) : c10::IValue();
  check_case({"_safe_softmax",
              "",
              "safe_softmax_sharded",
              {any_logits(r.sizes, any_float()), r.spelled(), dtype},
              {r.placements},
              {r.placements},
              r.mesh});
}
RC_GTEST_PROP(Softmax, BackwardEqualsAten, ()) {
  check_backward("_softmax_backward_data", "softmax_backward_sharded", false);
}
RC_GTEST_PROP(Softmax, LogSoftmaxBackwardEqualsAten, ()) {
  check_backward("_log_softmax_backward_data", "log_softmax_backward_sharded", true);
}

RC_GTEST_PROP(Softmax, LogSumExpEqualsAten, ()) {
  const Rows r;
  std::vector<std::int64_t> dims{r.dim};
  if (flip() && r.ndim > 1) dims.push_back((r.dim + 1) % r.ndim);
  const bool keepdim = flip();
  check_case({"logsumexp",
              "",
              "logsumexp_sharded",
              {any_logits(r.sizes, any_float()), dims, keepdim},
              {r.placements},
              {reduced(r.placements, dims, keepdim, true)},
              r.mesh});
}

TEST(Softmax, WritesToOut) {
  const auto x = at::randn({3, 5});
  const KernelCase c{"_softmax",   "out", "softmax_sharded", {x, 1, false, at::zeros({3, 5})}, {{Shard(1)}, {Shard(1)}},
                     {{Shard(1)}}, {2}};
  EXPECT_TRUE(at::allclose(run_sharded(c)[0], x.softmax(1)));
}

}  // namespace
}  // namespace dtensor::testing
