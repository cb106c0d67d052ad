// Means, reductions with identities, index reductions, norms and variances over split dimensions against the ATen
// operators, including empty shards.
#include "local_kernels/local_kernel_fixture.h"

namespace dtensor::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// A tensor, some dimensions to reduce and a placement.
struct Reduction {
  explicit Reduction(int min_dims = 0) : sizes(any_sizes(min_dims, 3)) {}
  std::vector<std::int64_t> mesh = any_mesh();
  std::vector<std::int64_t> sizes;
  std::int64_t ndim = static_cast<std::int64_t>(sizes.size());
  std::vector<std::int64_t> dims = some_dims();  // not empty unless 0-dim
  std::int64_t dim = dims.empty() ? 0 : dims[0];
  bool keepdim = flip();
  bool full = flip();  // request a Replicate result instead of Partial
  Placements placements = any_shards(mesh, all_dims(ndim));

  std::vector<std::int64_t> some_dims() const {
    std::vector<std::int64_t> chosen;
    for (std::int64_t d = 0; d < ndim; ++d) {
      if (flip()) chosen.push_back(d);
    }
    return chosen.empty() && ndim > 0 ? std::vector<std::int64_t>{pick(0, ndim - 1)} : chosen;
  }
  Placements out(ReduceOp op) const { return reduced(placements, dims, keepdim, full, op); }
  Placements out_full() const { return reduced(placements, dims, keepdim, true); }
  Placements out_dim(bool w, ReduceOp op = ReduceOp::sum) const { return reduced(placements, {dim}, keepdim, w, op); }
  Placements out_all(bool w, ReduceOp op = ReduceOp::sum) const {
    return reduced(placements, all_dims(ndim), false, w, op);
  }
};

// Few distinct values, so that ties occur.
at::Tensor any_values(const std::vector<std::int64_t>& sizes) {
  const auto x = at::randint(-3, 4, sizes);
  if (flip()) return x.to(at::kLong);
  auto y = x.to(any_float());
  if (pick(0, 3) == 0) y.masked_fill_(at::rand(sizes).lt(0.2), NAN);
  if (pick(0, 3) == 0) y.masked_fill_(at::rand(sizes).lt(0.5), flip() ? -kInf : kInf);
  return y;
}

RC_GTEST_PROP(Mean, OfAllElementsEqualsAten, ()) {
  const Reduction r;
  check_case({"mean",
              "",
              "mean_global_count",
              {at::randn(r.sizes).to(any_float()), c10::IValue()},
              {r.placements},
              {r.out_all(r.full)},
              r.mesh});
}

RC_GTEST_PROP(Mean, AlongDimsEqualsAten, ()) {
  const Reduction r;
  const bool integers = flip();
  const auto x = integers ? at::randint(9, r.sizes) : at::randn(r.sizes).to(any_float());
  const auto dtype = integers || flip() ? c10::IValue(at::kDouble) : c10::IValue();
  check_case({"mean",
              "dim",
              "mean_global_count",
              {x.to(integers ? at::kLong : x.scalar_type()), r.dims, r.keepdim, dtype},
              {r.placements},
              {r.out(ReduceOp::sum)},
              r.mesh});
}

RC_GTEST_PROP(Identity, AmaxAndAminEqualAten, ()) {
  const Reduction r;
  const bool max = flip();
  check_case({max ? "amax" : "amin",
              "",
              max ? "max_with_identity" : "min_with_identity",
              {any_values(r.sizes), r.dims, r.keepdim},
              {r.placements},
              {r.out(max ? ReduceOp::max : ReduceOp::min)},
              r.mesh});
}

RC_GTEST_PROP(Identity, MaxAndMinOfAllElementsEqualAten, ()) {
  const Reduction r;
  const bool max = flip();
  check_case({max ? "max" : "min",
              "",
              max ? "max_with_identity" : "min_with_identity",
              {any_values(r.sizes)},
              {r.placements},
              {r.out_all(r.full, max ? ReduceOp::max : ReduceOp::min)},
              r.mesh});
}

RC_GTEST_PROP(Identity, AminmaxEqualsAten, ()) {
  const Reduction r;
  const auto x = any_values(r.sizes);
  if (r.ndim > 0) {
    check_case({"aminmax",
                "",
                "aminmax_with_identity",
                {x, r.dim, r.keepdim},
                {r.placements},
                {r.out_dim(r.full, ReduceOp::min), r.out_dim(r.full, ReduceOp::max)},
                r.mesh});
  }
}

RC_GTEST_PROP(ArgMax, AlongDimEqualsAten, ()) {
  const Reduction r(1);
  const bool max = flip();
  check_case({max ? "argmax" : "argmin",
              "",
              max ? "argmax_sharded" : "argmin_sharded",
              {any_values(r.sizes), r.dim, r.keepdim},
              {r.placements},
              {r.out_dim(true)},
              r.mesh});
}

RC_GTEST_PROP(ArgMax, OfAllElementsEqualsAten, ()) {
  const Reduction r;
  const bool max = flip();
  check_case({max ? "argmax" : "argmin",
              "",
              max ? "argmax_sharded" : "argmin_sharded",
              {any_values(r.sizes), c10::IValue(), r.keepdim},
              {r.placements},
              {reduced(r.placements, all_dims(r.ndim), r.keepdim, true)},
              r.mesh});
}

RC_GTEST_PROP(ArgMax, MaxWithIndicesEqualsAten, ()) {
  const Reduction r(1);
  const bool max = flip();
  check_case({max ? "max" : "min",
              "dim",
              max ? "max_dim_sharded" : "min_dim_sharded",
              {any_values(r.sizes), r.dim, r.keepdim},
              {r.placements},
              {r.out_dim(true), r.out_dim(true)},
              r.mesh});
}

RC_GTEST_PROP(Norm, VectorNormsEqualAten, ()) {
  const Reduction r;
  const double p = *rc::gen::element(0.0, 1.0, 2.0, 3.0, 0.5, -1.0, kInf, -kInf);
  auto x = at::randn(r.sizes).to(any_float()) * (p == 2 && flip() ? 1e18 : 1);
  if (flip()) x.masked_fill_(at::rand(r.sizes).lt(0.2), 0);
  check_case({"linalg_vector_norm",
              "",
              "vector_norm_sharded",
              {x, at::Scalar(p), r.dims, r.keepdim, c10::IValue()},
              {r.placements},
              {r.out_full()},
              r.mesh});
  check_case({"norm", "Scalar", "vector_norm_sharded", {x, at::Scalar(p)}, {r.placements}, {r.out_all(true)}, r.mesh});
}

RC_GTEST_PROP(Norm, NormsOfComplexAndCastTensorsEqualAten, ()) {
  const Reduction r;
  const auto x = at::complex(at::randn(r.sizes), at::randn(r.sizes));
  check_case({"linalg_vector_norm",
              "",
              "vector_norm_sharded",
              {x, at::Scalar(2), r.dims, r.keepdim, c10::IValue(at::kComplexDouble)},
              {r.placements},
              {r.out_full()},
              r.mesh});
  check_case({"norm",
              "ScalarOpt_dim",
              "vector_norm_sharded",
              {x, c10::IValue(), r.dims, r.keepdim},
              {r.placements},
              {r.out_full()},
              r.mesh});
}

RC_GTEST_PROP(Norm, ForeachNormsEqualAten, ()) {
  const auto mesh = any_mesh();
  const double p = *rc::gen::element(0.0, 1.0, 2.0, 3.0, kInf);
  std::vector<at::Tensor> tensors;
  KernelCase c{"_foreach_norm", "Scalar", "foreach_norm", {}, {}, {}, mesh};
  for (std::int64_t i = pick(1, 5); i > 0; --i) {
    const auto sizes = any_sizes(0, 2, p == kInf ? 1 : 0);
    tensors.push_back(at::randn(sizes).to(any_float()));
    c.inputs.push_back(any_shards(mesh, all_dims(static_cast<std::int64_t>(sizes.size()))));
    c.outputs.push_back(replicated(mesh));
  }
  c.args = {tensors, at::Scalar(p), c10::IValue()};
  check_case(c);
}

RC_GTEST_PROP(Variance, EveryFormEqualsAten, ()) {
  const Reduction r;
  const std::string op = *rc::gen::element<std::string>("var", "std", "var_mean", "std_mean");
  const auto correction = *rc::gen::element<c10::IValue>(at::Scalar(0), at::Scalar(1), at::Scalar(2.5), c10::IValue());
  auto x = at::randn(r.sizes) + (flip() ? 1000 : 0);
  x = flip() ? x.to(any_float()) : at::complex(x, at::randn(r.sizes));
  const auto out = r.out_full();
  const std::string kernel = op.starts_with("std") ? "std_sharded" : "var_sharded";
  check_case({op, "correction", kernel, {x, r.dims, correction, r.keepdim}, {r.placements}, {out, out}, r.mesh});
}

RC_GTEST_PROP(Scan, CumsumAndCumprodEqualAten, ()) {
  const Reduction r;
  const auto x = any_values(r.sizes);
  check_case({"cumsum", "", "cumsum_sharded", {x, r.dim, c10::IValue()}, {r.placements}, {r.placements}, r.mesh});
  check_case({"cumprod", "", "cumprod_sharded", {x, r.dim, c10::IValue()}, {r.placements}, {r.placements}, r.mesh});
}

RC_GTEST_PROP(Scan, LogCumSumExpEqualsAten, ()) {
  const Reduction r;
  const auto x = at::randn(r.sizes).to(any_float());
  check_case({"logcumsumexp", "", "logcumsumexp_sharded", {x, r.dim}, {r.placements}, {r.placements}, r.mesh});
}

}  // namespace
}  // namespace dtensor::testing
