// Batch norm with a sharded batch or sharded spatial dimensions. Moments and gradient sums are those of the global
// batch (two small all_reduces in forward, one in backward), and running statistics are equal on all ranks. As on one
// device, the output uses the biased variance and the running variance is unbiased. One kernel serves all operators
// with these arguments. In a BitIdentical scope sums are trees, and each step is exact or of single numbers.
#include "internal/bit_identical.h"
#include "ops/local_kernels/bit_identical/tree.h"
#include "ops/local_kernels/reductions/moments.h"

namespace dtensor {
namespace {

struct NormLayout {
  std::vector<std::int64_t> reduced;  // all dimensions except the channels
  std::vector<std::int64_t> channel;  // shape in which a vector of channels broadcasts
  double count;                       // elements of a global channel
  AxisMask axes;                      // axes that shard reduced dimensions
};

NormLayout layout_of(const LocalArgs& args, const at::Tensor& input) {
  NormLayout l{{}, std::vector<std::int64_t>(static_cast<std::size_t>(input.dim()), 1), 1, 0};
  const auto sizes = args.global_sizes("input");
  for (std::int64_t d = 0; d < input.dim(); ++d) {
    if (d == 1) continue;
    l.reduced.push_back(d);
    l.count *= static_cast<double>(sizes[d]);
  }
  l.channel[1] = input.size(1);
  l.axes = shard_axes(args.spec("input"), l.reduced);
  return l;
}

// A per-channel argument in double, in the shape `channel`; undefined if absent.
at::Tensor vector(const LocalArgs& args, const char* name, const NormLayout& l) {
  const auto tensor = args.has(name) ? args.tensor(name) : at::Tensor();
  return tensor.defined() && tensor.numel() == l.channel[1] ? tensor.to(at::kDouble).view(l.channel) : at::Tensor();
}

void update(const LocalArgs& args, const char* name, const at::Tensor& value, double momentum) {
  const auto running = args.tensor(name);
  if (running.defined()) running.copy_(running.to(at::kDouble) * (1 - momentum) + value.flatten() * momentum);
}

// Whether the operator trains. `default_value` is the value for operators without such a flag.
bool is_training(const LocalArgs& args, bool default_value) {
  for (const char* flag : {"training", "train", "update"}) {
    if (args.has(flag)) return args.flag(flag);
  }
  return default_value;
}

double epsilon(const LocalArgs& args) {
  for (const char* name : {"eps", "epsilon"}) {
    if (args.has(name)) return args.value(name).toDouble();
  }
  return 0;
}

double momentum_of(const LocalArgs& args) {
  return args.value(args.has("momentum") ? "momentum" : "exponential_average_factor").toDouble();
}

// Returns the results, written to out= arguments if there are any. The running statistics are already updated. Results
// that are not requested are undefined.
void finish(LocalCall& call, std::vector<at::Tensor> results) {
  const auto& arguments = call.info.args;
  const auto reserve = LocalArgs(call).tensor("input").options().dtype(at::kByte);
  std::size_t next = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].out || next >= results.size()) continue;
    results[next] = torch::jit::peek(call.stack, i, arguments.size()).toTensor().copy_(results[next]);
    ++next;
  }
  torch::jit::drop(call.stack, arguments.size());
  for (std::size_t i = 0; i < call.info.returns.size(); ++i) {
    if (i >= results.size()) results.push_back(at::empty({0}, reserve));
    call.stack.emplace_back(std::move(results[i]));
  }
}

// The sums of each channel over all ranks, in a row for each tensor.
at::Tensor channel_sums(const LocalCall& call, const LocalArgs& args, std::vector<at::Tensor> all,
                        const NormLayout& l) {
  const bool by_tree = is_bit_identical();
  const auto* spec = args.spec("input");
  for (at::Tensor& t : all) {
    t = by_tree ? bit_identical::sum_of_channels(call.mesh, spec, args.global_sizes("input"), t).view(l.channel)
                : t.sum(l.reduced, true);
  }
  const auto own = at::stack(all);
  return by_tree ? own : all_reduce(call.mesh, own, ReduceOp::sum, l.axes);
}

VarianceAccumulator channel_moments(const LocalCall& call, const LocalArgs& args, const at::Tensor& x,
                                    const NormLayout& l) {
  if (!is_bit_identical()) return global_variance(call, x, l.reduced, l.count, true, l.axes);
  const auto mean = channel_sums(call, args, {x}, l)[0] / l.count, centered = x - mean;
  return {mean, channel_sums(call, args, {centered * centered}, l)[0]};
}

struct Statistics {
  at::Tensor mean, rstd;  // in the channels' shape, double
};

Statistics batch_statistics(LocalCall& call, const LocalArgs& args, const at::Tensor& x, const NormLayout& l) {
  const auto [mean, squares] = channel_moments(call, args, x, l);
  if (args.has("running_mean")) {
    const double momentum = momentum_of(args);
    update(args, "running_mean", mean, momentum);
    update(args, "running_var", squares / (l.count - 1), momentum);
  }
  return {mean, (squares / l.count).add_(epsilon(args)).rsqrt_()};
}

// Whether ATen's kernel on the shard gives the correct result: no reduced dimension is sharded, or inference reduces
// none. Its bits depend on the position of an element and on the threads.
bool can_run_regular_operator(const at::Tensor& input, const NormLayout& l, bool training) {
  return input.numel() > 0 && (l.axes == 0 || !training) && !is_bit_identical();
}

void batch_norm(LocalCall& call) {
  const LocalArgs args(call);
  const auto input = args.tensor("input");
  const NormLayout l = layout_of(args, input);
  const bool training = is_training(args, call.info.rule().data().written != 0);
  if (can_run_regular_operator(input, l, training)) return call.info.op.callBoxed(call.stack);
  const auto x = input.to(at::kDouble);
  const Statistics s =
      training ? batch_statistics(call, args, x, l)
               : Statistics{vector(args, "running_mean", l), (vector(args, "running_var", l) + epsilon(args)).rsqrt()};
  auto y = (x - s.mean).mul_(s.rstd);
  if (const auto weight = vector(args, "weight", l); weight.defined()) y.mul_(weight);
  if (const auto bias = vector(args, "bias", l); bias.defined()) y.add_(bias);
  const auto saved = [&](const at::Tensor& value, std::size_t i) {
    const auto type = call.outputs[i]->dtype;
    const bool kept = training || c10::multiply_integers(call.outputs[i]->sizes) > 0;
    return kept ? value.flatten().to(type) : at::empty({0}, input.options().dtype(type));
  };
  finish(call, {y.to(call.outputs[0]->dtype), saved(s.mean, 1), saved(s.rstd, 2)});
}

// d/dx of rstd (x - mean) w: w rstd (g - mean(g) - xhat mean(g xhat)) in training, otherwise w rstd g.
void batch_norm_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto input = args.tensor("input");
  const NormLayout l = layout_of(args, input);
  const bool training = is_training(args, true);
  if (can_run_regular_operator(input, l, /*training=*/true)) return call.info.op.callBoxed(call.stack);
  const bool cudnn = args.has("grad_output");
  const auto g = args.tensor(cudnn ? "grad_output" : "grad_out").to(at::kDouble);
  const char* saved_rstd = args.has("save_invstd") ? "save_invstd" : "save_var";
  const Statistics s =
      training ? Statistics{vector(args, "save_mean", l), vector(args, saved_rstd, l)}
               : Statistics{vector(args, "running_mean", l), (vector(args, "running_var", l) + epsilon(args)).rsqrt()};
  const auto xhat = (input.to(at::kDouble) - s.mean).mul_(s.rstd);
  const auto sums = channel_sums(call, args, {g, g * xhat}, l);
  auto grad = training ? (g - sums[0] / l.count).sub_(xhat * (sums[1] / l.count)) : g;
  grad = grad * s.rstd;
  if (const auto weight = vector(args, "weight", l); weight.defined()) grad.mul_(weight);
  const auto typed = [&](const at::Tensor& value, std::size_t i) {
    return call.outputs[i] ? value.to(call.outputs[i]->dtype) : at::Tensor();
  };
  finish(call, {typed(grad, 0), typed(sums[1].flatten(), 1), typed(sums[0].flatten(), 2)});
}

}  // namespace

void add_batch_norm_kernels(LocalKernels& kernels) {
  kernels.emplace("batch_norm_global", batch_norm);
  kernels.emplace("batch_norm_backward_global", batch_norm_backward);
}

}  // namespace dtensor
