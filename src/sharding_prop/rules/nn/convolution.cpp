// Convolution. Batch, groups, and input and output channels may be sharded; sharded input channels give Partial(sum).
// Spatial dimensions may be sharded too: ranks exchange the rows that their windows reach, or that reach them if it is
// transposed. A local kernel adjusts the number of groups and the size of the bias.
#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/shared_parts.h"

namespace dtensor {
namespace {

constexpr const char *kKernel = "convolution_local", *kBackwardKernel = "convolution_backward_local";

// Letters: n batch, g groups, i and o channels of a group, abc (S) spatial dimensions. With several groups, the
// channels of each group are unsharded.
struct Channels {
  bool transposed, groups;
};

// Letters for the input's spatial dimensions.
struct SpatialFactors {
  std::string split, unsharded;  // "abc" for sharded dimensions, "___" for those of the kernel
};

SpatialFactors spatial_factors(at::IntArrayRef input) {
  const std::size_t count = std::min<std::size_t>(input.size() - std::min<std::size_t>(input.size(), 2), 3);
  return {std::string("abc").substr(0, count), std::string(count, '_')};
}

std::string filled(std::string text, const SpatialFactors& spatial) {
  for (std::size_t at = text.find_first_of("ST"); at != std::string::npos; at = text.find_first_of("ST", at)) {
    const std::string& letters = text[at] == 'S' ? spatial.split : spatial.unsharded;
    text.replace(at, 1, letters);
    at += letters.size();
  }
  return text;
}

Rule spatial_rule(const char* text, const char* kernel, at::IntArrayRef input) {
  const SpatialFactors spatial = spatial_factors(input);
  Rule rule(filled(text, spatial));
  return spatial.split.empty() ? rule : elastic(rule.sharded_by_kernel(spatial.split, kernel), spatial.split);
}

Channels channels(const OpArgs& op) {
  return {op.has_arg("transposed") && op.boolean("transposed"), op.has_arg("groups") && op.integer("groups") != 1};
}

// Without input channels one device returns no channels, whatever the weight has. There is nothing to shard.
bool has_no_channels(const OpArgs& op, int input) { return op.sizes(input).size() > 1 && op.sizes(input)[1] == 0; }

Rule convolution(const OpArgs& op) {
  if (has_no_channels(op, 0)) return {};
  const auto [transposed, groups] = channels(op);
  const char* text = transposed ? (groups ? "n(gi!)S, (gi)o!T, +(go) -> n(go)S" : "niS, ioT, +o -> noS")
                                : (groups ? "n(gi!)S, (go!)iT, +(go) -> n(go)S" : "niS, oiT, +o -> noS");
  Rule rule =
      spatial_rule(text, kKernel, op.sizes(0)).sharded_by_kernel("no", kKernel).nonempty("i").linear({0, 2}, {1, 2});
  return groups ? rule.sharded_by_kernel("g", kKernel) : rule;
}

// The gradient of the bias depends only on the upstream gradient: sharded input channels leave it replicated.
Rule convolution_backward(const OpArgs& op) {
  if (has_no_channels(op, 1)) return {};
  const auto [transposed, groups] = channels(op);
  const char* text =
      transposed ? (groups ? "n(go!)S, n(gi!)S, (gi)oT -> n(gi)S, (gi)oT, (go)@0" : "noS, niS, ioT -> niS, ioT, o@0")
                 : (groups ? "n(go!)S, n(gi!)S, (go)iT -> n(gi)S, (go)iT, (go)@0" : "noS, niS, oiT -> niS, oiT, o@0");
  Rule rule = spatial_rule(text, kBackwardKernel, op.sizes(1))
                  .sharded_by_kernel("nio", kBackwardKernel)
                  .nonempty("i")
                  .linear({0});
  return groups ? rule.sharded_by_kernel("g", kBackwardKernel) : rule;
}

// Spatial sizes after a convolution, or the inverse if it is transposed.
at::DimVector sizes_after(const OpArgs& op, int input_at, int weight_at) {
  const OpArgs::Extents input = op.sizes(input_at), weight = op.sizes(weight_at);
  const std::size_t spatial = weight.require(2).size() - 2;
  const auto stride = op.integers("stride", spatial), padding = op.integers("padding", spatial);
  const auto dilation = op.integers("dilation", spatial), extra = op.integers("output_padding", spatial);
  const bool transposed = op.boolean("transposed");
  TORCH_CHECK(c10::multiply_integers(weight.slice(2)) != 0,
              "kernel size should be greater than zero, but got a weight of sizes ", weight);
  at::DimVector sizes{input[0], transposed ? weight[1] * op.integer("groups") : weight[0]};
  if (has_no_channels(op, input_at)) sizes[1] = 0;
  for (std::size_t d = 0; d < spatial; ++d) {
    const auto window = dilation[d] * (weight[d + 2] - 1) + 1, size = input[d + 2];
    sizes.push_back(transposed ? (size - 1) * stride[d] - 2 * padding[d] + window + extra[d]
                               : (size + 2 * padding[d] - window) / stride[d] + 1);
  }
  return sizes;
}

std::vector<OutputMeta> convolution_outputs(const OpArgs& op) {
  return {dense_meta(sizes_after(op, 0, 1), op.dtype(0))};
}

std::vector<OutputMeta> backward_outputs(const OpArgs& op) {
  const at::DimVector expected = sizes_after(op, 1, 2);
  TORCH_CHECK(op.sizes(0).equals(expected), "the gradient of a convolution: an upstream gradient of sizes ",
              op.sizes(0), " does not belong to an input of sizes ", op.sizes(1), " and a weight of sizes ",
              op.sizes(2), ", whose result has sizes ", at::IntArrayRef(expected));
  const auto channels = op.boolean("transposed") ? op.sizes(2)[1] * op.integer("groups") : op.sizes(2)[0];
  auto outputs = like_operands(op, {1, 2});
  outputs.push_back(dense_meta({channels}, op.dtype(0)));
  return masked(op, "output_mask", std::move(outputs));
}

}  // namespace

void add_convolution_rules(RuleBook& book) {
  for (const char* op : {"aten::convolution", "aten::_convolution", "aten::convolution_overrideable"}) {
    book.rule(op, convolution, "by groups and transposed").outputs(convolution_outputs);
  }
  for (const char* op : {"aten::convolution_backward", "aten::convolution_backward_overrideable"}) {
    book.rule(op, convolution_backward, "by groups and transposed").outputs(backward_outputs);
  }
  book.rule("aten::conv_tbc", "_n_, ~* -> _n_").sharded_by_kernel("n", kSkipEmpty);  // only batches
  book.rule("aten::slow_conv_transpose2d", "nS!, ~* -> nS").sharded_by_kernel("n", kSkipEmpty);
  // Kernels of aten::convolution, without a way to infer the sizes of results. A direct call runs replicated.
  for (const char* op : {"aten::_slow_conv2d_forward", "aten::slow_conv3d_forward", "aten::slow_conv_dilated2d",
                         "aten::slow_conv_dilated3d", "aten::slow_conv_transpose3d", "aten::_conv_depthwise2d",
                         "aten::conv_depthwise3d"}) {
    book.rule(op, Rule());
  }
  // w = v g / |v|, with the norm over all dimensions but `dim`. The gain g has the rank of v, or one dimension.
  book.rule("aten::_weight_norm_interface",
            "X![dim=d], X=_[dim=d] -> X[dim=d], X=_[dim=d] | X![dim=d], d -> X[dim=d], d");
  book.rule("aten::_weight_norm_interface_backward",
            "X![dim=d], X[dim=d], X=_[dim=d], X=_[dim=d] -> X[dim=d], X=_[dim=d] | "
            "X![dim=d], X[dim=d], d, d -> X[dim=d], d")
      .takes_saved_results();
}

}  // namespace dtensor
