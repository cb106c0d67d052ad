// var, std, var_mean and std_mean over split dimensions. Each rank's mean and sum of squared deviations are combined in
// double by the pairwise update of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing
// sample variances", 1979), exact for uneven and empty shards: two all_reduces of one value per output element.
#include "ops/handlers/moments.h"

namespace dtensor {
namespace {

double count_of(at::IntArrayRef sizes, at::IntArrayRef dims) {
  double count = 1;
  for (const auto d : dims) count *= static_cast<double>(sizes[d]);
  return count;
}

Moments own_moments(const at::Tensor& self, at::IntArrayRef dims, double count, bool keepdim) {
  // A mean rounded to float would put its error, times the ranks' distance, into the squares.
  const auto x = self.to(self.is_complex() ? at::kComplexDouble : at::kDouble);
  if (count == 0) {
    const auto zero = at::sum(x, dims, keepdim);
    return {zero, zero.abs()};
  }
  const auto [variance, mean] = at::var_mean(x, dims, at::Scalar(0), keepdim);
  return {mean, variance * count};
}

void variance(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self");
  TORCH_CHECK(self.is_floating_point() || self.is_complex(), base_name(call),
              " only support floating point and complex dtypes");
  const auto dims = args.reduced_dims();
  const double count = count_of(args.global_sizes("self"), dims);
  const auto given = args.value("correction");
  const double correction = given.isNone() ? 1 : given.toScalar().toDouble();
  const AxisMask axes = shard_axes(args.spec("self"), dims);
  const auto [mean, squares] = global_moments(call, self, dims, count, args.flag("keepdim"), axes);
  auto result = squares / std::max(count - correction, 0.0);
  if (base_name(call).substr(0, 3) == "std") result = result.sqrt();
  std::vector<at::Tensor> results{result.to(call.outputs[0]->dtype)};
  if (call.outputs.size() > 1) results.push_back(mean.to(call.outputs[1]->dtype));
  give(call, std::move(results));
}

}  // namespace

Moments global_moments(const LocalCall& call, const at::Tensor& self, at::IntArrayRef dims, double count, bool keepdim,
                       AxisMask axes) {
  const double own_count = count_of(self.sizes(), dims);
  const auto own = own_moments(self, dims, own_count, keepdim);
  auto mean = all_reduce(call.mesh, own.mean * (own_count / count), ReduceOp::sum, axes);
  const auto shift = (own.mean - mean).abs().square();
  return {mean, all_reduce(call.mesh, own.squares + shift * own_count, ReduceOp::sum, axes)};
}

void register_variance_kernels() { register_local_kernel("var_sharded", variance); }

}  // namespace dtensor
