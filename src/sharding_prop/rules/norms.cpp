// Layer and RMS normalisation: the leading dimensions may be sharded, and gradients of weight and bias are sums over
// them. What is normalised stays whole, but for layer norm, whose moments a local kernel exchanges.
#include "sharding_prop/rules/metas.h"
#include "sharding_prop/rules/rules.h"

namespace dtensor {
namespace {

// Leading factors are shared; the last `count` dimensions are whole.
struct Normalised {
  Rule rule;
  RuleTerm full, stats, inner;
};

Normalised normalised(const OpArgs& op, int input, const char* kernel = nullptr) {
  Normalised x;
  const std::size_t rank = op.sizes(input).size(), count = op.integers("normalized_shape").size();
  for (std::size_t d = 0; d < rank; ++d) {
    const int factor = x.rule.factor();
    x.full.push_back({factor});
    const bool whole = d + count >= rank;
    if (whole) kernel == nullptr ? x.rule.whole_factor(factor) : x.rule.handled_factor(factor, kernel);
    if (whole) x.inner.push_back({factor});
    x.stats.push_back(whole ? RuleDim() : RuleDim{factor});
  }
  return x;
}

void add_parameters(const OpArgs& op, int first, int end, Normalised& x) {
  for (int i = first; i < end; ++i) op.defined(i) ? x.rule.operand(x.inner) : x.rule.absent_operand();
}

Rule layer_norm(const OpArgs& op) {
  Normalised x = normalised(op, 0, "layer_norm_sharded");
  x.rule.operand(x.full);
  add_parameters(op, 1, 3, x);
  return x.rule.result(x.full).result(x.stats).result(x.stats).handled_gives_replicate();
}

// grad_out, input, mean, rstd, weight, bias
Rule layer_norm_backward(const OpArgs& op) {
  Normalised x = normalised(op, 1, "layer_norm_backward_sharded");
  x.rule.operand(x.full).operand(x.full).operand(x.stats).operand(x.stats);
  add_parameters(op, 4, 6, x);
  return x.rule.result(x.full).result(x.inner).result(x.inner).linear({0});
}

Rule rms_norm(const OpArgs& op) {
  Normalised x = normalised(op, 0);
  x.rule.operand(x.full);
  add_parameters(op, 1, 2, x);
  return x.rule.result(x.full).result(x.stats);
}

// grad_out, input, rstd, weight
Rule rms_norm_backward(const OpArgs& op) {
  Normalised x = normalised(op, 1);
  x.rule.operand(x.full).operand(x.full).operand(x.stats);
  add_parameters(op, 3, 4, x);
  return x.rule.result(x.full).result(x.inner).linear({0});
}

at::DimVector stats_sizes(const OpArgs& op, int input) {
  at::DimVector sizes(op.sizes(input).begin(), op.sizes(input).end());
  const std::size_t count = op.integers("normalized_shape").size();
  for (std::size_t d = sizes.size() - count; d < sizes.size(); ++d) sizes[d] = 1;
  return sizes;
}

// CPU keeps the statistics of half types in the parameters' type, CUDA in float.
c10::ScalarType stats_dtype(const OpArgs& op) {
  const c10::ScalarType input = op.dtype(0);
  const bool half = input == c10::ScalarType::Half || input == c10::ScalarType::BFloat16;
  if (!half) return input;
  if (op.device() != c10::DeviceType::CPU) return c10::ScalarType::Float;
  return op.defined(1) ? op.dtype(1) : input;
}

std::vector<OutputMeta> layer_norm_outputs(const OpArgs& op) {
  const OutputMeta stats = dense_meta(stats_sizes(op, 0), stats_dtype(op));
  return {dense_meta(op.sizes(0), op.dtype(0)), stats, stats};
}

std::vector<OutputMeta> backward_outputs(const OpArgs& op, int first_parameter) {
  const auto& mask = op.arg("output_mask").toBoolList();
  const auto shape = op.integers("normalized_shape");
  std::vector<OutputMeta> outputs{mask[0] ? dense_meta(op.sizes(1), op.dtype(1)) : undefined_meta()};
  for (std::size_t i = 1; i < mask.size(); ++i) {
    const int parameter = first_parameter + static_cast<int>(i) - 1;
    const c10::ScalarType dtype = op.defined(parameter) ? op.dtype(parameter) : op.dtype(1);
    outputs.push_back(mask[i] ? dense_meta(shape, dtype) : undefined_meta());
  }
  return outputs;
}

// The running statistics are written, though the schema does not say so. Statistics are over batch and places.
Rule batch_norm(const OpArgs& op) {
  for (const int i : {3, 4}) {
    TORCH_CHECK(!op.defined(i) || !op.has_partial(i),
                "batch norm: running statistics that are Partial cannot be written");
  }
  Rule rule;
  RuleTerm full;
  for (std::size_t d = 0; d < op.sizes(0).size(); ++d) {
    full.push_back({rule.factor()});
    if (d != 1) rule.whole_factor(static_cast<int>(d));
  }
  rule.operand(full);
  for (int i = 1; i < 5; ++i) op.defined(i) ? rule.operand({full[1]}) : rule.absent_operand();
  rule.result(full).result({full[1]}).result({full[1]});
  return op.boolean("training") ? rule.writes({3, 4}) : rule;
}

// In evaluation the saved statistics have no elements.
std::vector<OutputMeta> batch_norm_outputs(const OpArgs& op) {
  const std::int64_t channels = op.boolean("training") ? op.sizes(0)[1] : 0;
  const OutputMeta stats = dense_meta({channels}, stats_dtype(op));
  OutputMeta out = dense_meta(op.sizes(0), op.dtype(0));
  out.strides = op.strides(0);
  return {out, stats, stats};
}

}  // namespace

void add_norm_rules(RuleBook& book) {
  book.rule("aten::native_batch_norm", batch_norm).outputs(batch_norm_outputs);
  book.rule("aten::native_layer_norm", layer_norm).outputs(layer_norm_outputs);
  book.rule("aten::native_layer_norm_backward", layer_norm_backward).outputs([](const OpArgs& op) {
    return backward_outputs(op, 4);
  });
  book.rule("aten::_fused_rms_norm", rms_norm).outputs([](const OpArgs& op) {
    return std::vector{dense_meta(op.sizes(0), op.dtype(0)), dense_meta(stats_sizes(op, 0), stats_dtype(op))};
  });
  book.rule("aten::_fused_rms_norm_backward", rms_norm_backward).outputs([](const OpArgs& op) {
    return backward_outputs(op, 3);
  });
}

}  // namespace dtensor
