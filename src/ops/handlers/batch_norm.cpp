// Batch norm whose batch or places are split: moments and gradient sums over the whole batch (two small all_reduces
// forward, one backward), running statistics updated alike on every rank. Variance as one device computes it: biased
// for the output, unbiased for the running one. One kernel for all operators that have these arguments.
#include "ops/handlers/local_args.h"
#include "ops/handlers/moments.h"

namespace dtensor {
namespace {

struct Layout {
  std::vector<std::int64_t> reduced;  // all dimensions but the channels'
  std::vector<std::int64_t> channel;  // shape in which a vector of channels broadcasts
  double count;                       // elements of a whole channel
  AxisMask axes;                      // that split what is reduced
};

Layout layout_of(const LocalArgs& args, const at::Tensor& input) {
  Layout l{{}, std::vector<std::int64_t>(static_cast<std::size_t>(input.dim()), 1), 1, 0};
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

// As the input's channels lie, in double.
at::Tensor vector(const LocalArgs& args, const char* name, const Layout& l) {
  const auto tensor = args.has(name) ? args.tensor(name) : at::Tensor();
  return tensor.defined() && tensor.numel() == l.channel[1] ? tensor.to(at::kDouble).view(l.channel) : at::Tensor();
}

void update(const LocalArgs& args, const char* name, const at::Tensor& value, double momentum) {
  const auto running = args.tensor(name);
  if (running.defined()) running.copy_(running.to(at::kDouble) * (1 - momentum) + value.flatten() * momentum);
}

bool is_training(const LocalArgs& args, const LocalCall& call) {
  if (args.has("training")) return args.flag("training");
  if (args.has("train")) return args.flag("train");
  if (args.has("update")) return args.flag("update");
  const auto name = base_name(call);
  return name.find("_no_update") == name.npos && name.find("_no_training") == name.npos;
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

// Returned, or written to out=; the running statistics are written already.
void finish(LocalCall& call, std::vector<at::Tensor> results) {
  const auto& arguments = call.info.args;
  std::size_t next = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].out || next >= results.size()) continue;
    results[next] = torch::jit::peek(call.stack, i, arguments.size()).toTensor().copy_(results[next]);
    ++next;
  }
  torch::jit::drop(call.stack, arguments.size());
  const auto reserve = results[0].options().dtype(at::kByte);
  for (std::size_t i = 0; i < call.info.returns.size(); ++i) {
    if (i >= results.size()) results.push_back(at::empty({0}, reserve));
    call.stack.emplace_back(std::move(results[i]));
  }
}

struct Statistics {
  at::Tensor mean, rstd;  // in the channels' shape, double
};

Statistics batch_statistics(LocalCall& call, const LocalArgs& args, const at::Tensor& x, const Layout& l) {
  const auto [mean, squares] = global_moments(call, x, l.reduced, l.count, true, l.axes);
  if (args.has("running_mean")) {
    const double momentum = momentum_of(args);
    update(args, "running_mean", mean, momentum);
    update(args, "running_var", squares / (l.count - 1), momentum);
  }
  return {mean, (squares / l.count).add_(epsilon(args)).rsqrt_()};
}

// Nothing is split that the plain kernel looks at as a whole.
bool plain_will_do(const at::Tensor& input, const Layout& l, bool training) {
  return input.numel() > 0 && (l.axes == 0 || !training);
}

void batch_norm(LocalCall& call) {
  const LocalArgs args(call);
  const auto input = args.tensor("input");
  const Layout l = layout_of(args, input);
  const bool training = is_training(args, call);
  if (plain_will_do(input, l, training)) return call.info.op.callBoxed(call.stack);
  const auto x = input.to(at::kDouble);
  const Statistics s =
      training ? batch_statistics(call, args, x, l)
               : Statistics{vector(args, "running_mean", l), (vector(args, "running_var", l) + epsilon(args)).rsqrt()};
  auto y = (x - s.mean).mul_(s.rstd);
  if (const auto weight = vector(args, "weight", l); weight.defined()) y.mul_(weight);
  if (const auto bias = vector(args, "bias", l); bias.defined()) y.add_(bias);
  const auto saved = [&](const at::Tensor& value, std::size_t i) {
    const auto type = call.outputs[i]->dtype;
    return training ? value.flatten().to(type) : at::empty({0}, input.options().dtype(type));
  };
  finish(call, {y.to(call.outputs[0]->dtype), saved(s.mean, 1), saved(s.rstd, 2)});
}

// d/dx of rstd (x - mean) w: w rstd (g - mean(g) - xhat mean(g xhat)) while training, w rstd g else.
void batch_norm_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto input = args.tensor("input");
  const Layout l = layout_of(args, input);
  const bool training = is_training(args, call);
  if (input.numel() > 0 && l.axes == 0) return call.info.op.callBoxed(call.stack);
  const bool cudnn = args.has("grad_output");
  const auto g = args.tensor(cudnn ? "grad_output" : "grad_out").to(at::kDouble);
  const char* saved_rstd = args.has("save_invstd") ? "save_invstd" : "save_var";
  const Statistics s =
      training ? Statistics{vector(args, "save_mean", l), vector(args, saved_rstd, l)}
               : Statistics{vector(args, "running_mean", l), (vector(args, "running_var", l) + epsilon(args)).rsqrt()};
  const auto xhat = (input.to(at::kDouble) - s.mean).mul_(s.rstd);
  const auto own = at::stack({g.sum(l.reduced, true), (g * xhat).sum(l.reduced, true)});
  const auto sums = all_reduce(call.mesh, own, ReduceOp::sum, l.axes);
  auto grad = training ? (g - sums[0] / l.count).sub_(xhat * (sums[1] / l.count)) : g;
  grad = grad * s.rstd;
  if (const auto weight = vector(args, "weight", l); weight.defined()) grad.mul_(weight);
  const auto typed = [&](const at::Tensor& value, std::size_t i) {
    return call.outputs[i] ? value.to(call.outputs[i]->dtype) : at::Tensor();
  };
  finish(call, {typed(grad, 0), typed(sums[1].flatten(), 1), typed(sums[0].flatten(), 2)});
}

}  // namespace

void register_batch_norm_kernels() {
  register_local_kernel("batch_norm_global", batch_norm);
  register_local_kernel("batch_norm_backward_global", batch_norm_backward);
}

}  // namespace dtensor
