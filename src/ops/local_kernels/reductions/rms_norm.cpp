// RMS norm of half-precision rows by the kernels of row_norm, without float copies.
#include "ops/local_kernels/local_args.h"
#include "row_norm/kernels.h"

namespace dtensor {
namespace {

std::int64_t width_of(const LocalArgs& args) {
  return c10::multiply_integers(args.value("normalized_shape").toIntVector());
}

at::Tensor as_rows(const at::Tensor& t, std::int64_t n) { return t.contiguous().view({n > 0 ? t.numel() / n : 0, n}); }
at::Tensor as_floats(const at::Tensor& t) { return t.defined() ? t.to(at::kFloat).contiguous().view({-1}) : t; }

void rms_norm(LocalCall& call) {
  const LocalArgs args(call);
  const auto x = args.tensor("input");
  const auto [y, mean, rstd] = row_norm::forward(as_rows(x, width_of(args)), as_floats(args.tensor("weight")), {},
                                                 args.value("eps").toDouble(), /*centers=*/false);
  const TensorSpec& stats = *call.outputs[1];
  set_results(call, {y.view(x.sizes()), rstd.view(stats.local_sizes).to(stats.dtype)});
}

void rms_norm_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto x = args.tensor("input");
  const auto mask = args.value("output_mask").toBoolList();
  const auto n = width_of(args);
  const row_norm::Saved saved{.x = as_rows(x, n),
                              .mean = {},
                              .rstd = as_floats(args.tensor("rstd")),
                              .weight = as_floats(args.tensor("weight"))};
  const auto grad = as_rows(args.tensor("grad_out"), n);
  std::vector<at::Tensor> grads(2);
  if (mask[0]) grads[0] = row_norm::input_gradient(saved, grad).view(x.sizes());
  if (mask[1]) {
    const auto sum = row_norm::parameter_gradients(saved, grad)[0].view(call.outputs[1]->local_sizes);
    grads[1] =
        reduce_contribution(call, sum, ReduceOp::sum, shard_axes(args.spec("input")), 1).to(call.outputs[1]->dtype);
  }
  set_results(call, std::move(grads));
}

}  // namespace

void add_rms_norm_kernels(LocalKernels& kernels) {
  kernels.emplace("rms_norm_rows", rms_norm);
  kernels.emplace("rms_norm_backward_rows", rms_norm_backward);
}

}  // namespace dtensor
