// Group norm on a shard of the batch or the groups: the ATen operator with local counts in place of global ones. Where
// spatial dimensions are sharded, the moments of each group are combined over the ranks that share it, with two small
// all_reduces in forward and one in backward.
#include "ops/local_kernels/reductions/moments.h"

namespace dtensor {
namespace {

struct Groups {
  std::int64_t batch, channels, count;   // this rank's; `count` groups
  std::vector<std::int64_t> grouped;     // [batch, groups, elements of a group]
  std::vector<std::int64_t> by_channel;  // [batch, channels, positions]
  double numel;                          // elements of a global group
  AxisMask axes;                         // axes that shard spatial dimensions
};

Groups groups_of(const LocalArgs& args) {
  const auto input = args.tensor("input");
  Groups g{input.size(0), input.size(1), 0, {}, {}, 0, 0};
  g.count = args.integer("group") * g.channels / args.integer("C");
  std::int64_t positions = 1;
  std::vector<std::int64_t> spatial;
  g.numel = static_cast<double>(args.integer("C") / args.integer("group"));
  for (std::int64_t d = 2; d < input.dim(); ++d) {
    positions *= input.size(d);
    spatial.push_back(d);
    g.numel *= static_cast<double>(args.global_sizes("input")[static_cast<std::size_t>(d)]);
  }
  g.by_channel = {g.batch, g.channels, positions};
  g.grouped = {g.batch, g.count, g.count > 0 ? g.channels / g.count * positions : 0};
  g.axes = shard_axes(args.spec("input"), spatial);
  return g;
}

void run_on_shard(LocalCall& call, const Groups& g) {
  if (return_zeros_if_empty(call)) return;
  set_argument(call, "group", g.count);
  set_argument(call, "N", g.batch);
  set_argument(call, "C", g.channels);
  set_argument(call, "HxW", g.by_channel[2]);
  call.info.op.callBoxed(call.stack);
}

// A weight or bias that broadcasts over [batch, channels, positions]; undefined if absent.
at::Tensor of_channels(const LocalArgs& args, const char* name, at::ScalarType type) {
  const auto parameter = args.tensor(name);
  return parameter.defined() ? parameter.to(type).view({1, -1, 1}) : parameter;
}

void group_norm(LocalCall& call) {
  const LocalArgs args(call);
  const Groups g = groups_of(args);
  if (g.axes == 0) return run_on_shard(call, g);
  const auto input = args.tensor("input");
  const auto type = accumulate_type(input.scalar_type());
  const auto x = input.to(type).reshape(g.grouped);
  const auto [mean, squares] = global_variance(call, x, {2}, g.numel, true, g.axes);
  const auto rstd = (squares / g.numel).add_(args.value("eps").toDouble()).rsqrt_();
  auto y = (x - mean.to(type)).mul_(rstd.to(type)).reshape(g.by_channel);
  if (const auto weight = of_channels(args, "weight", type); weight.defined()) y.mul_(weight);
  if (const auto bias = of_channels(args, "bias", type); bias.defined()) y.add_(bias);
  const auto saved = [&](const at::Tensor& t, int i) { return t.squeeze(2).to(call.outputs[i]->dtype); };
  set_results(call, {y.reshape(input.sizes()).to(call.outputs[0]->dtype), saved(mean, 1), saved(rstd, 2)});
}

// d/dx of (x - mean) rstd: rstd (g - mean(g) - xhat mean(g xhat)), with means over global groups.
void group_norm_backward(LocalCall& call) {
  const LocalArgs args(call);
  const Groups g = groups_of(args);
  if (g.axes == 0) return run_on_shard(call, g);
  const auto input = args.tensor("input");
  const auto type = accumulate_type(input.scalar_type());
  const auto mask = args.value("output_mask").toBoolList();
  const auto grad = args.tensor("grad_out").to(type).reshape(g.by_channel);
  const auto rstd = args.tensor("rstd").to(type).unsqueeze(2);
  const auto xhat = (input.to(type).reshape(g.grouped) - args.tensor("mean").to(type).unsqueeze(2)).mul_(rstd);
  std::vector<at::Tensor> grads(3);
  if (mask[0]) {
    const auto weight = of_channels(args, "weight", type);
    const auto scaled = (weight.defined() ? grad * weight : grad).reshape(g.grouped);
    const auto own = at::stack({scaled.sum(2, true), (scaled * xhat).sum(2, true)}).div_(g.numel);
    const auto means = all_reduce(call.mesh, own, ReduceOp::sum, g.axes);
    grads[0] = (scaled - means[0]).sub_(xhat * means[1]).mul_(rstd).reshape(input.sizes()).to(call.outputs[0]->dtype);
  }
  // Contributions of this rank's positions.
  if (mask[1]) grads[1] = (grad * xhat.reshape(g.by_channel)).sum(at::IntArrayRef({0, 2})).to(call.outputs[1]->dtype);
  if (mask[2]) grads[2] = grad.sum(at::IntArrayRef({0, 2})).to(call.outputs[2]->dtype);
  set_results(call, std::move(grads));
}

}  // namespace

void add_group_norm_kernels(LocalKernels& kernels) {
  kernels.emplace("group_norm_sharded", group_norm);
  kernels.emplace("group_norm_backward_sharded", group_norm_backward);
}

}  // namespace dtensor
