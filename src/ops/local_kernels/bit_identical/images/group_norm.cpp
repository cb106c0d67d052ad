// Group norm in a BitIdentical scope: sums of a group are a tree over the positions of each channel, then one over the
// channels of the group.
#include "ops/local_kernels/bit_identical/tree.h"
#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

// The groups of this rank's part of the input.
class NormGroups {
 public:
  NormGroups(const LocalCall& call, const LocalArgs& args)
      : mesh_(call.mesh), spec_(args.spec("input")), sizes_(args.global_sizes("input")), input_(args.tensor("input")) {
    of_group_ = args.integer("C") / args.integer("group");
    spatial_ = bit_identical::first_dims(input_.dim());
    spatial_.erase(spatial_.begin(), spatial_.begin() + 2);
    numel_ = static_cast<double>(of_group_ * c10::multiply_integers(sizes_.slice(2)));
  }

  // The input, or a tensor of its sizes, in the dtype of sums.
  at::Tensor wide(const at::Tensor& t) const { return t.to(type()).view(input_.sizes()); }
  at::ScalarType type() const { return bit_identical::sum_type(input_.scalar_type()); }

  // Means over groups [batch, groups] of a tensor of the input's sizes.
  at::Tensor means(const at::Tensor& t) const {
    const auto of_channels = bit_identical::sum_over(mesh_, spec_, sizes_, t, spatial_).reshape({-1, of_group_});
    return bit_identical::sum_over(mesh_, nullptr, of_channels.sizes(), of_channels, {1})
        .view({input_.size(0), input_.size(1) / of_group_})
        .div(numel_);
  }
  // Numbers of groups [batch, groups] as [batch, channels, 1...].
  at::Tensor spread(const at::Tensor& of_groups) const {
    return of_groups.to(type()).repeat_interleave(of_group_, 1).view(channel_sizes(input_.size(0)));
  }
  // A parameter [channels] as [1, channels, 1...].
  at::Tensor spread_parameter(const at::Tensor& parameter) const { return parameter.to(type()).view(channel_sizes(1)); }
  at::Tensor sum_of_channels(const at::Tensor& t) const {
    return bit_identical::sum_of_channels(mesh_, spec_, sizes_, t);
  }

 private:
  std::vector<std::int64_t> channel_sizes(std::int64_t batch) const {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(input_.dim()), 1);
    sizes[0] = batch, sizes[1] = input_.size(1);
    return sizes;
  }

  const MeshImpl& mesh_;
  const TensorSpec* spec_;
  at::IntArrayRef sizes_;
  at::Tensor input_;
  std::int64_t of_group_;
  double numel_;
  std::vector<std::int64_t> spatial_;
};

void tree_group_norm(LocalCall& call) {
  const LocalArgs args(call);
  const NormGroups groups(call, args);
  const auto x = groups.wide(args.tensor("input")), mean = groups.means(x);
  const auto centered = at::sub(x, groups.spread(mean));
  const auto variance = groups.means(at::mul(centered, centered));
  const auto rstd = at::add(variance, args.value("eps").toScalar()).sqrt().reciprocal();
  auto y = at::mul(centered, groups.spread(rstd));
  if (const auto weight = args.tensor("weight"); weight.defined()) y = at::mul(y, groups.spread_parameter(weight));
  if (const auto bias = args.tensor("bias"); bias.defined()) y = at::add(y, groups.spread_parameter(bias));
  set_results(call, {y.to(call.outputs[0]->dtype), mean.to(call.outputs[1]->dtype), rstd.to(call.outputs[2]->dtype)});
}

// d/dx of (x - mean) rstd: rstd (g - mean(g) - xhat mean(g xhat)).
void tree_group_norm_backward(LocalCall& call) {
  const LocalArgs args(call);
  const NormGroups groups(call, args);
  const auto mask = args.value("output_mask").toBoolList();
  const auto grad = groups.wide(args.tensor("grad_out")), rstd = groups.spread(args.tensor("rstd"));
  const auto centered = at::sub(groups.wide(args.tensor("input")), groups.spread(args.tensor("mean")));
  const auto xhat = at::mul(centered, rstd);
  std::vector<at::Tensor> results(3);
  if (mask[0]) {
    const auto weight = args.tensor("weight");
    const auto scaled = weight.defined() ? at::mul(grad, groups.spread_parameter(weight)) : grad;
    const auto along = at::mul(xhat, groups.spread(groups.means(at::mul(scaled, xhat))));
    const auto rest = at::sub(at::sub(scaled, groups.spread(groups.means(scaled))), along);
    results[0] = at::mul(rest, rstd).to(call.outputs[0]->dtype);
  }
  if (mask[1]) results[1] = groups.sum_of_channels(at::mul(grad, xhat)).to(call.outputs[1]->dtype);
  if (mask[2]) results[2] = groups.sum_of_channels(grad).to(call.outputs[2]->dtype);
  set_results(call, std::move(results));
}

}  // namespace

void add_tree_group_norm_kernels(LocalKernels& kernels) {
  kernels.emplace("tree_group_norm", tree_group_norm);
  kernels.emplace("tree_group_norm_backward", tree_group_norm_backward);
}

}  // namespace dtensor
