// Layer, RMS and batch normalisation: the leading dimensions may be sharded, and gradients of weight and bias are sums
// over them. What is normalised stays whole, but for layer norm, whose moments a local kernel exchanges.
#include "sharding_prop/rules/metas.h"
#include "sharding_prop/rules/rules.h"

#include <ATen/ExpandUtils.h>

namespace dtensor {
namespace {

// Leading factors are shared; the last `count` dimensions are whole.
struct Normalised {
  Rule rule;
  RuleTerm full, stats, inner;
};

Normalised normalised(const OpArgs& op, int input, const char* kernel = nullptr) {
  Normalised x;
  const std::size_t count = op.integers("normalized_shape").size(), rank = op.sizes(input).require(count).size();
  for (std::size_t d = 0; d < rank; ++d) {
    const int factor = x.rule.factor();
    x.full.push_back({factor});
    const bool whole = d + count >= rank;
    // One element is moved for less than its two moments.
    const bool moments = kernel != nullptr && op.sizes(input)[d] != 1;
    if (whole) moments ? x.rule.handled_factor(factor, kernel) : x.rule.whole_factor(factor);
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
  const std::size_t count = op.integers("normalized_shape").size();
  const auto lead = op.sizes(input).drop_back(count);
  at::DimVector sizes(lead.begin(), lead.end());
  return sizes.append(count, 1), sizes;
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

bool trains(const OpArgs& op, bool by_name) {
  for (const char* flag : {"training", "train", "update"}) {
    if (op.has_arg(flag)) return op.boolean(flag);
  }
  return by_name;
}

// Terms of batch norm: everything but the channels is reduced over, by a local kernel.
struct BatchNorm {
  Rule rule;
  RuleTerm full, channel;
};

BatchNorm batch_norm_terms(const OpArgs& op, int input, const char* kernel) {
  BatchNorm x;
  for (std::size_t d = 0; d < op.sizes(input).require(2).size(); ++d) {
    x.full.push_back({x.rule.factor()});
    if (d != 1) x.rule.handled_factor(static_cast<int>(d), kernel);
  }
  x.channel = {x.full[1]};
  x.rule.kernel(kernel);
  return x;
}

// Vectors of channels; saved statistics have no elements in evaluation.
void add_channel_operands(const OpArgs& op, BatchNorm& x, std::initializer_list<std::string_view> full) {
  for (int i = 0; i < op.operand_count(); ++i) {
    const std::string_view name = op.operand_arg(i);
    const bool is_full = std::find(full.begin(), full.end(), name) != full.end();
    const bool per_channel = op.defined(i) && op.sizes(i).size() == 1 && op.sizes(i)[0] == op.sizes(0)[1];
    if (is_full)
      x.rule.operand(x.full);
    else
      per_channel&& name != "reserve" && name != "reserveSpace" ? x.rule.operand(x.channel) : x.rule.absent_operand();
  }
}

// native_batch_norm writes the running statistics, though its schema does not say so. `trains`: what operators without
// a flag do.
Rule batch_norm(const OpArgs& op, bool by_name) {
  BatchNorm x = batch_norm_terms(op, 0, "batch_norm_global");
  add_channel_operands(op, x, {"input", "out"});
  const bool training = trains(op, by_name);
  const RuleTerm stats = training ? x.channel : RuleTerm{RuleDim()};
  x.rule.result(x.full).result(stats).result(stats);
  for (int r = 3; r < op.result_count(); ++r) x.rule.result({RuleDim()});
  x.rule.handled_gives_replicate();
  const int mean = op.operand("running_mean"), variance = op.operand("running_var");
  return training && mean >= 0 ? x.rule.writes({mean, variance}) : x.rule;
}

Rule batch_norm_backward(const OpArgs& op) {
  BatchNorm x = batch_norm_terms(op, op.operand("input"), "batch_norm_backward_global");
  add_channel_operands(op, x, {"input", "grad_out", "grad_output"});
  return x.rule.result(x.full).result(x.channel).result(x.channel).handled_gives_replicate();
}

std::vector<OutputMeta> batch_norm_outputs(const OpArgs& op, bool by_name) {
  const std::int64_t channels = trains(op, by_name) ? op.sizes(0)[1] : 0;
  const OutputMeta stats = dense_meta({channels}, stats_dtype(op));
  OutputMeta out = dense_meta(op.sizes(0), op.dtype(0));
  const auto dense = at::infer_dense_strides(op.sizes(0), op.strides(0));
  out.strides.assign(dense.begin(), dense.end());
  std::vector<OutputMeta> outputs{out, stats, stats};
  if (op.result_count() > 3) outputs.push_back(dense_meta({0}, c10::ScalarType::Byte));
  return outputs;
}

std::vector<OutputMeta> batch_norm_gradients(const OpArgs& op) {
  const int input = op.operand("input"), weight = op.operand("weight");
  const auto asked =
      op.has_arg("output_mask") ? op.arg("output_mask").toBoolList() : c10::List<bool>({true, true, true});
  const c10::ScalarType dtype = weight >= 0 && op.defined(weight) ? op.dtype(weight) : op.dtype(input);
  const OutputMeta channels = dense_meta({op.sizes(input)[1]}, dtype);
  return {asked[0] ? dense_meta(op.sizes(input), op.dtype(input)) : undefined_meta(),
          asked[1] ? channels : undefined_meta(), asked[2] ? channels : undefined_meta()};
}

void add_batch_norm(RuleBook& book) {
  const auto add = [&](const char* name, bool by_name) {
    book.rule(name, [by_name](const OpArgs& op) { return batch_norm(op, by_name); })
        .outputs([by_name](const OpArgs& op) { return batch_norm_outputs(op, by_name); });
  };
  for (const char* name :
       {"aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit.no_stats",
        "aten::_batch_norm_with_update", "aten::cudnn_batch_norm"}) {
    add(name, true);
  }
  for (const char* name : {"aten::_batch_norm_no_update", "aten::_native_batch_norm_legit_no_training"}) {
    add(name, false);
  }
  for (const char* name :
       {"aten::native_batch_norm_backward", "aten::batch_norm_backward", "aten::cudnn_batch_norm_backward"}) {
    book.rule(name, batch_norm_backward).outputs(batch_norm_gradients);
  }
}

// Letters: n batch, g groups, c channels of a group. A local kernel sets the counts of the part.
struct GroupNorm {
  Rule rule;
  RuleTerm full, stats, channel;
};

GroupNorm group_norm_terms(const OpArgs& op, int input) {
  GroupNorm x;
  const std::int64_t groups = op.integer("group");
  const int n = x.rule.factor("n"), g = x.rule.factor("g", groups);
  const int c = x.rule.factor("c", op.integer("C") / groups);
  x.full = {RuleDim{n}, RuleDim{g, c}};
  while (x.full.size() < op.sizes(input).size()) x.full.push_back({x.rule.factor("s")});
  for (int f = c + 1; f <= c + std::ssize(op.sizes(input)) - 2; ++f) x.rule.whole_factor(f);
  x.stats = {RuleDim{n}, RuleDim{g}};
  x.channel = {RuleDim{g, c}};
  x.rule.whole_factor(c);
  for (const int f : {n, g}) x.rule.handled_factor(f, "group_norm_local");
  return x;
}

Rule group_norm(const OpArgs& op) {
  GroupNorm x = group_norm_terms(op, 0);
  x.rule.operand(x.full);
  for (const int i : {1, 2}) op.defined(i) ? x.rule.operand(x.channel) : x.rule.absent_operand();
  return x.rule.result(x.full).result(x.stats).result(x.stats);
}

// grad_out, input, mean, rstd, weight
Rule group_norm_backward(const OpArgs& op) {
  GroupNorm x = group_norm_terms(op, 1);
  x.rule.operand(x.full).operand(x.full).operand(x.stats).operand(x.stats);
  op.defined(4) ? x.rule.operand(x.channel) : x.rule.absent_operand();
  return x.rule.result(x.full).result(x.channel).result(x.channel).linear({0});
}

std::vector<OutputMeta> group_norm_outputs(const OpArgs& op) {
  const OutputMeta stats = dense_meta({op.integer("N"), op.integer("group")}, stats_dtype(op));
  return {dense_meta(op.sizes(0), op.dtype(0)), stats, stats};
}

std::vector<OutputMeta> group_norm_gradients(const OpArgs& op) {
  const auto& mask = op.arg("output_mask").toBoolList();
  const OutputMeta channels = dense_meta({op.integer("C")}, op.defined(4) ? op.dtype(4) : op.dtype(1));
  return {mask[0] ? dense_meta(op.sizes(1), op.dtype(1)) : undefined_meta(), mask[1] ? channels : undefined_meta(),
          mask[2] ? channels : undefined_meta()};
}

}  // namespace

void add_norm_rules(RuleBook& book) {
  book.rule("aten::native_group_norm", group_norm).outputs(group_norm_outputs);
  book.rule("aten::native_group_norm_backward", group_norm_backward).outputs(group_norm_gradients);
  add_batch_norm(book);
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
