// Convolution: batch, groups, and input and output channels shard (a sharded input channel leaves a Partial sum);
// places are whole. A local kernel sets the group count and the bias size of the part.
#include "sharding_prop/rules/metas.h"
#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/terms.h"

namespace dtensor {
namespace {

// Letters: n batch, g groups, i and o channels of a group.
struct Channels {
  Rule rule;
  RuleTerm input, weight, output, bias;
};

Channels channels(const OpArgs& op, int input, int weight, const char* kernel) {
  const std::int64_t groups = op.has_arg("groups") ? op.integer("groups") : 1;
  const bool transposed = op.has_arg("transposed") && op.boolean("transposed");
  const auto rank = op.sizes(weight).require(2).size();
  const std::int64_t in = op.sizes(input)[1] / std::max<std::int64_t>(groups, 1);
  const std::int64_t out = transposed ? op.sizes(weight)[1] : op.sizes(weight)[0] / std::max<std::int64_t>(groups, 1);
  Channels x;
  const int n = x.rule.factor("n"), g = x.rule.factor("g", groups);
  const int i = x.rule.factor("i", in), o = x.rule.factor("o", out);
  const RuleDim inputs = groups == 1 ? RuleDim{i} : RuleDim{g, i}, outputs = groups == 1 ? RuleDim{o} : RuleDim{g, o};
  if (groups > 1) x.rule.whole_factor(i), x.rule.whole_factor(o);
  const auto with_places = [&](RuleTerm term) {
    while (term.size() < rank) term.push_back(alone(x.rule));
    return term;
  };
  x.input = with_places({RuleDim{n}, inputs});
  x.output = with_places({RuleDim{n}, outputs});
  x.weight = with_places(transposed ? RuleTerm{inputs, RuleDim{o}} : RuleTerm{outputs, RuleDim{i}});
  x.bias = {outputs};
  for (const int f : {n, g, o}) x.rule.handled_factor(f, kernel);
  x.rule.nonempty("i");
  return x;
}

Rule convolution(const OpArgs& op) {
  Channels x = channels(op, 0, 1, "convolution_local");
  x.rule.operand(x.input).operand(x.weight);
  if (op.operand_count() > 2) op.defined(2) ? x.rule.operand(x.bias).once(2) : x.rule.absent_operand();
  return x.rule.result(x.output).linear({0, 2}, {1, 2});
}

// Places after a window has gone over them; the transpose undoes it.
std::vector<OutputMeta> convolution_outputs(const OpArgs& op) {
  const std::size_t places = op.sizes(1).require(2).size() - 2;
  const auto stride = op.integers("stride", places), padding = op.integers("padding", places);
  const auto dilation = op.integers("dilation", places), extra = op.integers("output_padding", places);
  const bool transposed = op.boolean("transposed");
  at::DimVector sizes{op.sizes(0)[0], transposed ? op.sizes(1)[1] * op.integer("groups") : op.sizes(1)[0]};
  for (std::size_t d = 0; d < places; ++d) {
    const auto window = dilation[d] * (op.sizes(1)[d + 2] - 1) + 1, size = op.sizes(0)[d + 2];
    sizes.push_back(transposed ? (size - 1) * stride[d] - 2 * padding[d] + window + extra[d]
                               : (size + 2 * padding[d] - window) / stride[d] + 1);
  }
  return {dense_meta(sizes, op.dtype(0))};
}

Rule convolution_backward(const OpArgs& op) {
  Channels x = channels(op, 1, 2, "convolution_backward_local");
  x.rule.operand(x.output).operand(x.input).operand(x.weight);
  x.rule.result(x.input).result(x.weight).result(x.bias);
  // The bias' gradient does not know the input channels: the kernel counts it once.
  return x.rule.handled("i", "convolution_backward_local").linear({0});
}

std::vector<OutputMeta> backward_outputs(const OpArgs& op) {
  auto outputs = like_operands(op, {1, 2, -1}, "output_mask");
  if (op.arg("output_mask").toBoolList()[2]) {
    const bool transposed = op.boolean("transposed");
    const auto channels = transposed ? op.sizes(2)[1] * op.integer("groups") : op.sizes(2)[0];
    outputs[2] = dense_meta({channels}, op.dtype(0));
  }
  return outputs;
}

// Batch only, and for those with the batch second.
Rule by_batch(const OpArgs& op, std::size_t dim) {
  Rule rule;
  const RuleDim batch{rule.factor()};
  const auto term = [&] {
    RuleTerm all = all_alone(rule, op.sizes(0).size());
    return all[dim] = batch, all;
  };
  rule.operand(term());
  for (int i = 1; i < op.operand_count(); ++i) rule.absent_operand();
  rule.result(term());
  for (int r = 1; r < op.result_count(); ++r) rule.absent_result();
  return rule.handled_factor(batch[0], kSkipEmpty);
}

// w = v g / |v|, the norm over all dimensions but `dim`, which is the first or the last. Gains have the same rank, or
// one dimension.
Rule weight_norm(const OpArgs& op) {
  Rule rule;
  const auto dim = static_cast<std::size_t>(op.dim("dim"));
  const RuleDim own{rule.factor()};
  const auto term_of = [&](at::IntArrayRef sizes) {
    RuleTerm term(sizes.size());
    if (!term.empty()) term[sizes.size() == 1 ? 0 : dim] = own;
    return term;
  };
  for (int i = 0; i < op.operand_count(); ++i) rule.operand(term_of(op.sizes(i)));
  for (int r = 0; r < op.result_count(); ++r) rule.result(term_of(op.result(r).sizes));
  return rule;
}

}  // namespace

void add_convolution_rules(RuleBook& book) {
  for (const char* op : {"aten::convolution", "aten::_convolution", "aten::convolution_overrideable"}) {
    book.rule(op, convolution).outputs(convolution_outputs);
  }
  for (const char* op : {"aten::convolution_backward", "aten::convolution_backward_overrideable"}) {
    book.rule(op, convolution_backward).outputs(backward_outputs);
  }
  book.rule("aten::conv_tbc", [](const OpArgs& op) { return by_batch(op, 1); });
  for (const char* op : {"aten::_slow_conv2d_forward", "aten::slow_conv3d_forward", "aten::slow_conv_dilated2d",
                         "aten::slow_conv_dilated3d", "aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d",
                         "aten::_conv_depthwise2d", "aten::conv_depthwise3d"}) {
    book.rule(op, [](const OpArgs& call) { return by_batch(call, 0); });
  }
  book.rule("aten::_weight_norm_interface", weight_norm);
  book.rule("aten::_weight_norm_interface_backward", weight_norm);
}

}  // namespace dtensor
