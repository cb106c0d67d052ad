// Transforms along dimensions, histograms, recurrent cells and other operators that are neither products nor
// reductions.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_fft_c2c.h>
#include <ATen/ops/_fft_c2r.h>
#include <ATen/ops/_fft_r2c.h>
#include <ATen/ops/empty_strided.h>

#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/shared_parts.h"

namespace dtensor {
namespace {

// The FFT library decides which dimension varies fastest in the result. A transform with two elements per dimension, in
// the operand's order of dimensions, determines it.
at::DimVector fourier_strides(const OpArgs& op, at::IntArrayRef sizes) {
  const at::DimVector twos(sizes.size(), 2);
  const auto options = at::TensorOptions(op.dtype(0)).device(op.device());
  const auto x = at::empty_strided(twos, at::infer_dense_strides(twos, op.strides(0)), options).zero_();
  const auto dims = op.dims("dim");
  const at::Tensor y = op.has_arg("onesided")        ? at::_fft_r2c(x, dims, 0, op.boolean("onesided"))
                       : op.has_arg("last_dim_size") ? at::_fft_c2r(x, dims, 0, 2)
                                                     : at::_fft_c2c(x, dims, 0, true);
  return at::DimVector(at::infer_dense_strides(sizes, y.strides()));
}

// Real transforms halve the last of the dimensions, or restore it.
std::vector<OutputMeta> fourier_outputs(const OpArgs& op) {
  at::DimVector sizes(op.sizes(0));
  const auto dims = op.dims("dim");
  const auto last = dims.empty() ? std::int64_t{-1} : dims.back();
  TORCH_CHECK(last >= 0 || op.has_arg("forward"), "Fourier transforms of real numbers need a dimension; the operand's ",
              "sizes are ", op.sizes(0));
  auto type = op.dtype(0);
  if (op.has_arg("onesided")) {
    if (op.boolean("onesided")) sizes[static_cast<std::size_t>(last)] = sizes[static_cast<std::size_t>(last)] / 2 + 1;
    type = c10::toComplexType(type);
  } else if (op.has_arg("last_dim_size")) {
    sizes[static_cast<std::size_t>(last)] = op.integer("last_dim_size");
    type = c10::toRealValueType(type);
  }
  OutputMeta meta = dense_meta(sizes, type);
  meta.strides = fourier_strides(op, sizes);
  return {meta};
}

// Counts are summed over ranks, unless the edges depend on the data.
Rule histc(const OpArgs& op) { return Rule(op.number("min") == op.number("max") ? "X! -> _" : "X -> _"); }

// Operands: self, optional bins, weight. Results: hist, bin_edges.
Rule histogram(const OpArgs& op) {
  const bool bins = op.operand("bins") >= 0, from_data = !bins && op.arg("range").isNone();
  Rule rule(bins ? "X, ~, X -> _, ~" : "X, X -> _, ~");
  return from_data || op.boolean("density") ? rule.unsharded("X") : rule;
}

std::vector<OutputMeta> histogram_outputs(const OpArgs& op) {
  const int bins = op.operand("bins");
  const std::int64_t edges = bins >= 0 ? op.sizes(bins)[0] : op.integer("bins") + 1;
  return {dense_meta({edges - 1}, op.dtype(0)), dense_meta({edges}, op.dtype(0))};
}

void add_histograms(RuleBook& book) {
  book.rule("aten::histc", histc, "X -> _ for given edges").reads_scalars().outputs([](const OpArgs& op) {
    return std::vector{dense_meta({op.integer("bins")}, op.dtype(0))};
  });
  for (const char* op : {"aten::histogram.bin_ct", "aten::histogram.bins_tensor"}) {
    book.rule(op, histogram, "X, X -> _, ~ for given edges").outputs(histogram_outputs);
  }
  for (const char* op : {"aten::_histogramdd_bin_edges", "aten::_histogramdd_from_bin_cts",
                         "aten::_histogramdd_from_bin_tensors", "aten::hash_tensor"}) {
    book.replicate(op, "depends on every element at once");
  }
}

// A mask with the sizes of operand `input` is sharded with it; another mask makes `input` unsharded. `input` has the
// sizes of the result.
constexpr const char* kMasked = "X[dim!]* -> X[dim] for a mask of each element";

Rule masked_softmax(const OpArgs& op, int input) {
  const bool each = op.sizes(input) == op.sizes(op.operand("mask"));
  return Rule(each ? "X[softened!]* -> X[softened]" : "X!, X?* -> X").dims("softened", [input](const OpArgs& call) {
    const auto dim = call.arg("dim").isNone() ? -1 : call.integer("dim");
    return std::vector{dim < 0 ? dim + std::ssize(call.sizes(input)) : dim};
  });
}

// Per row, GRU cells store five times the hidden size for backward.
constexpr std::int64_t kGruKept = 5, kGruGates = 3;

std::vector<OutputMeta> gru_outputs(const OpArgs& op) {
  const auto hx = op.sizes(2).require(2);
  return {dense_meta(hx, op.dtype(2)), dense_meta({hx[0], kGruKept * hx[1]}, op.dtype(2))};
}

OutputMeta bias_gradient(const OpArgs& op, std::int64_t gates, c10::ScalarType dtype) {
  return op.boolean("has_bias") ? dense_meta({gates}, dtype) : undefined_meta();
}

// Operands: grad_hy, workspace. Results: gradients of the input gates, the hidden gates, the state and both biases.
std::vector<OutputMeta> gru_gradients(const OpArgs& op) {
  const auto kept = op.sizes(1).require(2);
  const OutputMeta gates = dense_meta({kept[0], kept[1] / kGruKept * kGruGates}, op.dtype(1));
  const OutputMeta bias = bias_gradient(op, gates.sizes[1], op.dtype(1));
  return {gates, gates, dense_meta(op.sizes(0), op.dtype(0)), bias, bias};
}

// Operands: grad_hy, grad_cy, cx, cy, workspace. Results: gradients of the gates, cx and the bias.
std::vector<OutputMeta> lstm_gradients(const OpArgs& op) {
  auto outputs = like_operands(op, {4, 2});
  outputs.push_back(bias_gradient(op, op.sizes(4).back(), op.dtype(4)));
  return outputs;
}

void add_recurrent(RuleBook& book) {
  // Gates, state and biases of a batch of rows.
  book.rule("aten::_thnn_fused_lstm_cell", "ng!, ng!, nh!, ~, ~ -> nh, nh, ng");
  book.rule("aten::_thnn_fused_gru_cell", "n_, n_, n_, ~, ~ -> n_, n_").outputs(gru_outputs);
  book.rule("aten::_thnn_fused_lstm_cell_backward_impl", "n_, n_, n_, n_, n_ -> n_, n_, _")
      .takes_saved_results()
      .outputs(lstm_gradients);
  book.rule("aten::_thnn_fused_gru_cell_backward", "n_, n_ -> n_, n_, n_, _, _")
      .linear({0})
      .takes_saved_results()
      .outputs(gru_gradients);
  for (const char* op : {"aten::_cudnn_rnn", "aten::_cudnn_rnn_backward", "aten::_cudnn_rnn_flatten_weight",
                         "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"}) {
    book.replicate(op, "a recurrent kernel with packed weights and sequences");
  }
}

// With one scale for each operand, nothing to add and a result that can be summed, as aten::mm. Per-row scales are
// sharded with the rows; others make the rows unsharded.
Rule scaled_mm(const OpArgs& op) {
  const auto is_one = [&](int operand) { return c10::multiply_integers(op.sizes(operand)) == 1; };
  const auto& result = op.arg("out_dtype");
  const bool sums = !result.isNone() && !c10::isFloat8Type(result.toScalarType());
  return sums && is_one(2) && is_one(3) && !op.defined(4) && !op.defined(5) ? Rule("mk, kn, ~, ~, ~, ~ -> mn")
                                                                            : Rule("mk!, k!n!, m_?, ~, ~, ~ -> mn");
}

void add_quantized_products(RuleBook& book) {
  book.rule("aten::_scaled_mm", scaled_mm,
            "mk, kn, ~, ~, ~, ~ -> mn; with several scales, a bias or a float8 result mk!, k!n!, m_?, ~, ~, ~ -> mn");
  book.rule("aten::_int_mm", "mk!, k!n! -> mn");
  book.rule("aten::_weight_int8pack_mm", "mk!, n!k!, ~ -> mn");
  book.replicate("aten::_scaled_mm_v2", "its scales are laid out in blocks");
  book.replicate("aten::_scaled_addmm", "its scales are laid out in blocks");
}

void add_fused_inference(RuleBook& book) {
  for (const char* op : {"aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd",
                         "aten::_transform_bias_rescale_qkv"}) {
    book.replicate(op, "a fused kernel of inference");
  }
}

}  // namespace

void add_transforms_rules(RuleBook& book) {
  for (const char* op : {"aten::_fft_c2c", "aten::_fft_r2c", "aten::_fft_c2r"}) {
    book.rule(op, "X[dim!] -> X[dim]").sharded_by_kernel("X", kSkipEmpty).linear({0}).outputs(fourier_outputs);
  }
  add_histograms(book);
  book.rule(
          "aten::_masked_softmax", [](const OpArgs& op) { return masked_softmax(op, 0); }, kMasked)
      .outputs([](const OpArgs& op) { return like_operands(op, {0}); });
  book.rule(
          "aten::_masked_softmax_backward", [](const OpArgs& op) { return masked_softmax(op, 1).linear({0}); }, kMasked)
      .outputs([](const OpArgs& op) { return like_operands(op, {0}); });
  add_recurrent(book);
  add_quantized_products(book);
  add_fused_inference(book);
  book.rule("aten::linspace", Rule());  // operands are scalar tensors
  book.rule("aten::logspace", Rule());
  book.rule("aten::_amp_update_scale_", Rule());
  for (const char* op : {"aten::as_strided_", "aten::as_strided_copy", "aten::as_strided_scatter"}) {
    book.replicate(op, "strides refer to the memory of the full tensor");
  }
  book.replicate("aten::affine_grid_generator", "its size argument counts the batch");
  book.replicate("aten::block_diag", "blocks of all operands lie in every row");
  book.replicate("aten::_chunk_cat", "chunks of all operands interleave");
}

}  // namespace dtensor
