// var, std, var_mean and std_mean over split dimensions. Each rank's mean and sum of squared deviations are combined in
// double by the pairwise update of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing
// sample variances", 1979), exact for uneven and empty shards: two all_reduces of one value per output element.
#include "ops/handlers/local_args.h"

namespace dtensor {
namespace {

struct Moments {
  at::Tensor mean;     // double (complex double for complex inputs)
  at::Tensor squares;  // sum of squared deviations, double
};

std::int64_t count_of(at::IntArrayRef sizes, at::IntArrayRef dims) {
  std::int64_t count = 1;
  for (const auto d : dims) count *= sizes[d];
  return count;
}

Moments own_moments(const at::Tensor& self, at::IntArrayRef dims, double count, bool keepdim) {
  const auto x = self.to(accumulate_type(self.scalar_type()));
  const auto wide = self.is_complex() ? at::kComplexDouble : at::kDouble;
  if (count == 0) {
    const auto zero = at::sum(x, dims, keepdim, wide);
    return {zero, zero.abs().to(at::kDouble)};
  }
  const auto [variance, mean] = at::var_mean(x, dims, at::Scalar(0), keepdim);
  return {mean.to(wide), variance.to(at::kDouble).mul(count)};
}

Moments global_moments(const LocalCall& call, const Moments& own, double own_count, double count, AxisMask axes) {
  auto mean = all_reduce(call.mesh, own.mean * (own_count / count), ReduceOp::sum, axes);
  const auto shift = (own.mean - mean).abs().square();
  return {mean, all_reduce(call.mesh, own.squares + shift * own_count, ReduceOp::sum, axes)};
}

void variance(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self");
  const auto dims = args.reduced_dims();
  const double own_count = static_cast<double>(count_of(self.sizes(), dims));
  const double count = static_cast<double>(count_of(args.global_sizes("self"), dims));
  const auto given = args.value("correction");
  const double correction = given.isNone() ? 1 : given.toScalar().toDouble();
  const auto own = own_moments(self, dims, own_count, args.flag("keepdim"));
  auto [mean, squares] = global_moments(call, own, own_count, count, shard_axes(args.spec("self"), dims));
  auto result = squares / std::max(count - correction, 0.0);
  const auto name = base_name(call);
  if (name.substr(0, 3) == "std") result = result.sqrt();
  std::vector<at::Tensor> results{result.to(call.outputs[0]->dtype)};
  if (call.outputs.size() > 1) results.push_back(mean.to(call.outputs[1]->dtype));
  give(call, std::move(results));
}

}  // namespace

void register_variance_kernels() { register_local_kernel("var_sharded", variance); }

}  // namespace dtensor
