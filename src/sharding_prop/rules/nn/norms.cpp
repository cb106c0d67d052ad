// Layer, RMS, group and batch norm. The leading dimensions may be sharded; gradients of weight and bias are sums over
// them. Normalized dimensions are unsharded, except for layer norm, where a local kernel reduces the moments.
#include "internal/kernels/gpu_kernels.h"
#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/shared_parts.h"

namespace dtensor {
namespace {

at::DimVector stats_sizes(const OpArgs& op, int input) {
  const std::size_t count = op.integers("normalized_shape").size();
  return joined(op.sizes(input).drop_back(count), at::DimVector(count, 1));
}

c10::ScalarType type_of_parameters(const OpArgs& op) { return op.defined(1) ? op.dtype(1) : op.dtype(0); }

// For half-precision input the statistics have the parameters' dtype on CPU, and float32 on CUDA.
c10::ScalarType stats_dtype(const OpArgs& op) {
  const c10::ScalarType input = op.dtype(0);
  const bool half = input == c10::ScalarType::Half || input == c10::ScalarType::BFloat16;
  if (!half) return input;
  if (op.device() != c10::DeviceType::CPU) return c10::ScalarType::Float;
  return type_of_parameters(op);
}

std::vector<OutputMeta> layer_norm_outputs(const OpArgs& op) {
  const OutputMeta stats = dense_meta(stats_sizes(op, 0), stats_dtype(op));
  return {dense_meta(op.sizes(0), op.dtype(0)), stats, stats};
}

// Kernels do not convert operands: the dtype must be the input's, or float32 for half-precision input.
bool is_promoting_type(c10::ScalarType type, c10::ScalarType input) {
  const bool half = input == c10::ScalarType::Half || input == c10::ScalarType::BFloat16;
  return type == input || (half && type == c10::ScalarType::Float);
}

void check_parameter(const OpArgs& op, const char* name, int input, at::IntArrayRef sizes) {
  const int i = op.operand(name);
  if (i < 0 || !op.defined(i)) return;
  const c10::ScalarType type = op.dtype(input);
  TORCH_CHECK(op.sizes(i).equals(sizes), "norm of an input of sizes ", op.sizes(input), ": `", name, "` of sizes ",
              op.sizes(i), ", expected ", sizes);
  TORCH_CHECK(is_promoting_type(op.dtype(i), type), "norm of an input of type ", type, ": expected scalar type ", type,
              " but found ", op.dtype(i), " (`", name, "`)");
}

// Checked here, since the kernel reads as many elements as the input has rows and columns, whatever the sizes.
void check_of_input(const OpArgs& op) {
  for (const char* name : {"weight", "bias"}) check_parameter(op, name, 1, op.integers("normalized_shape"));
  TORCH_CHECK(op.sizes(0).equals(op.sizes(1)), "the gradient of a norm: an upstream gradient of sizes ", op.sizes(0),
              " does not belong to an input of sizes ", op.sizes(1));
  TORCH_CHECK(op.dtype(0) == op.dtype(1), "the gradient of a norm: expected scalar type ", op.dtype(1), " but found ",
              op.dtype(0), ", an upstream gradient of another type than the input");
  const at::DimVector expected = stats_sizes(op, 1);
  for (const char* name : {"mean", "rstd"}) {
    const int i = op.operand(name);
    if (i < 0 || !op.defined(i)) continue;
    TORCH_CHECK(op.sizes(i).equals(expected), "the gradient of a norm: `", name, "` of sizes ", op.sizes(i),
                " does not belong to an input of sizes ", op.sizes(1), ", expected ", at::IntArrayRef(expected));
    TORCH_CHECK(is_promoting_type(op.dtype(i), op.dtype(1)), "the gradient of a norm: expected scalar type ",
                op.dtype(1), " but found ", op.dtype(i), " (`", name, "`)");
  }
}

std::vector<OutputMeta> backward_outputs(const OpArgs& op, int first_parameter) {
  check_of_input(op);
  auto outputs = like_operands(op, {1});
  const auto asked = static_cast<int>(op.arg("output_mask").toBoolList().size());
  for (int i = first_parameter; i + 1 < first_parameter + asked; ++i) {
    outputs.push_back(dense_meta(op.integers("normalized_shape"), op.defined(i) ? op.dtype(i) : op.dtype(1)));
  }
  return masked(op, "output_mask", std::move(outputs));
}

// Half-precision input with float parameters, which ATen's kernels for GPUs refuse. The local kernel takes them.
bool has_mixed_types(const OpArgs& op, const char* input) {
  if (!takes_gpu_kernel(GpuKernel::layer_norm, op.device())) return false;
  const auto type = op.dtype(op.operand(input));
  if (type != c10::ScalarType::Half && type != c10::ScalarType::BFloat16) return false;
  for (const char* name : {"weight", "bias"}) {
    const int i = op.operand(name);
    if (i >= 0 && op.defined(i)) return op.dtype(i) == c10::ScalarType::Float;
  }
  return false;
}

Rule layer_norm(const OpArgs& op) {
  constexpr const char* kKernel = "layer_norm_sharded";
  Rule rule = Rule("N D, D, D -> N D, N D=_, N D=_; D = normalized_shape").sharded_by_kernel("D", kKernel);
  rule.kernel_gives_replicate();
  return has_mixed_types(op, "input") ? rule.kernel(kKernel) : rule;
}

Rule layer_norm_backward(const OpArgs& op) {
  constexpr const char* kKernel = "layer_norm_backward_sharded";
  Rule rule = Rule("N D, N D, N D=_, N D=_, D, D -> N D, D, D; D = normalized_shape").sharded_by_kernel("D", kKernel);
  rule.linear({0});
  return has_mixed_types(op, "input") ? rule.kernel(kKernel) : rule;
}

// Half-precision rows on a GPU, by the kernels of row_norm. The caller has checked that the device has them.
bool is_half_on_gpu(const OpArgs& op) {
  const auto type = op.dtype(op.operand("input"));
  const bool half = type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16;
  return half && takes_gpu_kernel(GpuKernel::layer_norm, op.device());
}

Rule rms_norm(const OpArgs& op) {
  Rule rule("N D!, D -> N D, N D=_; D = normalized_shape");
  return is_half_on_gpu(op) ? rule.kernel("rms_norm_rows") : rule;
}

Rule rms_norm_backward(const OpArgs& op) {
  Rule rule("N D!, N D, N D=_, D -> N D, D; D = normalized_shape");
  rule.linear({0});
  return is_half_on_gpu(op) ? rule.kernel("rms_norm_backward_rows") : rule;
}

bool trains(const OpArgs& op, bool by_name) {
  for (const char* flag : {"training", "train", "update"}) {
    if (op.has_arg(flag)) return op.boolean(flag);
  }
  return by_name;
}

// In training the running statistics are written, although the schema does not say so. In evaluation the saved
// statistics have no elements, except from CUDA's own kernels, which store the statistics used. `by_name` is whether
// operators without a flag train.
Rule batch_norm(const OpArgs& op, bool by_name) {
  Rule rule("ncS, c?* -> ncS, c?, c?, ~*");
  rule.sharded_by_kernel("nS", "batch_norm_global").kernel("batch_norm_global").kernel_gives_replicate();
  for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
    check_parameter(op, name, 0, {op.sizes(0)[1]});
  }
  for (const char* name : {"save_mean", "save_invstd"}) {
    const int out = op.operand(name);
    TORCH_CHECK(out < 0 || op.sizes(out).size() == 1, "batch norm: `", name, "`: expected one dimension, got sizes ",
                op.sizes(out));
  }
  const int mean = op.operand("running_mean"), variance = op.operand("running_var");
  const bool known = mean >= 0 && op.defined(mean) && op.defined(variance);
  TORCH_CHECK(trains(op, by_name) || known, "batch norm: expected running_mean and running_var in evaluation");
  return trains(op, by_name) && mean >= 0 ? rule.writes({mean, variance}) : rule;
}

std::vector<OutputMeta> batch_norm_outputs(const OpArgs& op, bool by_name, bool of_cudnn) {
  TORCH_CHECK(!trains(op, by_name) || c10::multiply_integers(op.sizes(0)) != 0,
              "input tensor must have at least one element, but got input_sizes = ", op.sizes(0));
  const bool saved = trains(op, by_name) || (is_cuda_call(op) && !of_cudnn);
  const std::int64_t channels = saved ? op.sizes(0)[1] : 0;
  const OutputMeta stats = dense_meta({channels}, stats_dtype(op));
  std::vector<OutputMeta> outputs{suggested_meta(op, op.sizes(0)), stats, stats};
  if (op.result_count() > 3) outputs.push_back(dense_meta({0}, c10::ScalarType::Byte));
  return outputs;
}

std::vector<OutputMeta> batch_norm_gradients(const OpArgs& op) {
  const int input = op.operand("input"), weight = op.operand("weight");
  const c10::ScalarType dtype = weight >= 0 && op.defined(weight) ? op.dtype(weight) : op.dtype(input);
  const OutputMeta channels = dense_meta({op.sizes(input)[1]}, dtype);
  std::vector<OutputMeta> outputs{dense_meta(op.sizes(input), op.dtype(input)), channels, channels};
  return op.has_arg("output_mask") ? masked(op, "output_mask", std::move(outputs)) : outputs;
}

void add_batch_norm(RuleBook& book) {
  const auto add = [&](const char* name, bool by_name, bool of_cudnn = false) -> Rule& {
    return book
        .rule(
            name, [by_name](const OpArgs& op) { return batch_norm(op, by_name); },
            "ncS, c?* -> ncS, c?, c?, ~*, written in training")
        .saved_for_backward()
        .outputs([=](const OpArgs& op) { return batch_norm_outputs(op, by_name, of_cudnn); });
  };
  for (const char* name :
       {"aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_batch_norm_with_update"}) {
    add(name, true).writes({3, 4});
  }
  add("aten::cudnn_batch_norm", true, /*of_cudnn=*/true).writes({3, 4});
  add("aten::_native_batch_norm_legit.no_stats", true);
  for (const char* name : {"aten::_batch_norm_no_update", "aten::_native_batch_norm_legit_no_training"}) {
    add(name, false);
  }
  for (const char* name :
       {"aten::native_batch_norm_backward", "aten::batch_norm_backward", "aten::cudnn_batch_norm_backward"}) {
    book.rule(name, "ncS, ncS, c?, c?, c?, c?, c?, ~ -> ncS, c, c")
        .sharded_by_kernel("nS", "batch_norm_backward_global")
        .kernel("batch_norm_backward_global")
        .kernel_gives_replicate()
        .saved_for_backward()
        .takes_saved_results()
        .outputs(batch_norm_gradients);
  }
}

// On every device, statistics of half-precision input have the parameters' dtype.
std::vector<OutputMeta> group_norm_outputs(const OpArgs& op) {
  const OutputMeta stats = dense_meta({op.integer("N"), op.integer("group")}, type_of_parameters(op));
  return {suggested_on_cpu(op, op.sizes(0)), stats, stats};
}

std::vector<OutputMeta> group_norm_gradients(const OpArgs& op) {
  const OutputMeta channels = dense_meta({op.integer("C")}, op.defined(4) ? op.dtype(4) : op.dtype(1));
  return masked(op, "output_mask", {dense_meta(op.sizes(1), op.dtype(1)), channels, channels});
}

}  // namespace

void add_norms_rules(RuleBook& book) {
  // Batch, groups, channels of a group. A local kernel passes the counts of the part, and reduces the moments where
  // spatial dimensions are sharded.
  book.rule("aten::native_group_norm", "n(gc!)S, (gc), (gc) -> n(gc)S, ng, ng")
      .sharded_by_kernel("ngS", "group_norm_sharded")
      .kernel_gives_replicate()
      .outputs(group_norm_outputs);
  book.rule("aten::native_group_norm_backward", "n(gc!)S, n(gc)S, ng, ng, (gc) -> n(gc)S, (gc), (gc)")
      .sharded_by_kernel("ngS", "group_norm_backward_sharded")
      .linear({0})
      .takes_saved_results()
      .outputs(group_norm_gradients);
  add_batch_norm(book);
  book.rule("aten::native_layer_norm", layer_norm,
            "N D, D, D -> N D, N D=_, N D=_; D = normalized_shape, local kernel for shards of D and mixed types")
      .outputs(layer_norm_outputs);
  book.rule("aten::native_layer_norm_backward", layer_norm_backward,
            "N D, N D, N D=_, N D=_, D, D -> N D, D, D; D = normalized_shape, local kernel as forward")
      .takes_saved_results()
      .outputs([](const OpArgs& op) { return backward_outputs(op, 4); });
  book.rule("aten::_fused_rms_norm", rms_norm,
            "N D!, D -> N D, N D=_; D = normalized_shape, local kernel for half types")
      .outputs([](const OpArgs& op) {
        return std::vector{dense_meta(op.sizes(0), op.dtype(0)), dense_meta(stats_sizes(op, 0), stats_dtype(op))};
      });
  book.rule("aten::_fused_rms_norm_backward", rms_norm_backward,
            "N D!, N D, N D=_, D -> N D, D; D = normalized_shape, local kernel as forward")
      .takes_saved_results()
      .outputs([](const OpArgs& op) { return backward_outputs(op, 3); });
}

}  // namespace dtensor
