// Elementwise operators: one rule for all operators tagged as pointwise, and those that keep a Partial.
#include <ATen/ExpandUtils.h>

#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/shared_parts.h"

namespace dtensor {

namespace {

Rule elementwise() { return Rule("...* -> ...*"); }

void add_linear(RuleBook& book) {
  // Summands may be added, negated and scaled separately; a constant may not be added to each.
  for (const char* op : {"aten::add.Tensor", "aten::sub.Tensor", "aten::rsub.Tensor", "aten::lerp.Scalar"}) {
    book.rule(op, elementwise().linear({0, 1}));
  }
  book.rule("aten::mul.Tensor", elementwise().linear({0}, {1}));
  for (const char* op : {"aten::mul.Scalar", "aten::div.Tensor", "aten::div.Scalar", "aten::neg", "aten::positive",
                         "aten::_conj_physical", "aten::conj_physical", "aten::rad2deg", "aten::deg2rad"}) {
    book.rule(op, elementwise().linear({0}));
  }
  book.rule("aten::addcmul", elementwise().linear({0, 1}, {0, 2}));
  book.rule("aten::addcdiv", elementwise().linear({0, 1}));
}

// Backward formulas that multiply the incoming gradient.
void add_backward(RuleBook& book) {
  for (const char* op : {"aten::gelu_backward",          "aten::silu_backward",
                         "aten::threshold_backward",     "aten::sigmoid_backward",
                         "aten::tanh_backward",          "aten::logit_backward",
                         "aten::elu_backward",           "aten::hardtanh_backward",
                         "aten::hardsigmoid_backward",   "aten::hardswish_backward",
                         "aten::leaky_relu_backward",    "aten::mish_backward",
                         "aten::softplus_backward",      "aten::softshrink_backward",
                         "aten::hardshrink_backward",    "aten::native_dropout_backward",
                         "aten::_masked_scale",          "aten::rrelu_with_noise_backward",
                         "aten::_prelu_kernel_backward", "aten::infinitely_differentiable_gelu_backward"}) {
    book.rule(op, elementwise().linear({0}));
  }
  // The buffer has the sizes of the input for CPU kernels and is empty for CUDA kernels.
  const auto log_sigmoid = [](const OpArgs& op) {
    return Rule(is_cuda_call(op) ? "X, X, ~ -> X" : "X, X, X? -> X").linear({0});
  };
  book.rule("aten::log_sigmoid_backward", log_sigmoid, "X, X, X? -> X, linear in X; on CUDA X, X, ~ -> X")
      .takes_saved_results();
}

void add_moves(RuleBook& book) {
  book.rule("aten::_lazy_clone", elementwise().structural({0}).keeps_storage_shards());
  book.rule("aten::clone", elementwise().structural({0}).keeps_storage_shards());
  book.rule("aten::_to_copy", elementwise().structural({0}).keeps_storage_shards());
  book.rule("aten::copy", elementwise().structural({0, 1}).reads_storage_shards());
  book.rule("aten::copy_", elementwise().structural({0, 1}).reads_storage_shards().overwrites());
  book.rule("aten::where.self", "..., ..., ... -> ...").structural({1, 2});
  book.rule("aten::zero", elementwise().structural({0}));
  book.rule("aten::maximum", elementwise().monotone({0, 1}, ReduceOp::max));
  book.rule("aten::minimum", elementwise().monotone({0, 1}, ReduceOp::min));
}

// The rounded values, and whether they were in range.
std::vector<OutputMeta> quantized_outputs(const OpArgs& op) {
  OutputMeta output = dense_meta(op.sizes(0), op.dtype(0));
  output.strides = at::infer_dense_strides(op.sizes(0), op.strides(0));
  OutputMeta mask = output;
  mask.dtype = at::kBool;
  return {output, mask};
}

// Elementwise operators without the pointwise tag.
void add_untagged(RuleBook& book) {
  for (const char* op : {"aten::fill", "aten::hardswish", "aten::masked_fill", "aten::_prelu_kernel",
                         "aten::where.ScalarOther", "aten::where.ScalarSelf", "aten::isin.Tensor_Scalar",
                         "aten::complex", "aten::polar", "aten::floor_divide", "aten::__irshift__", "aten::__ilshift__",
                         "aten::_add_relu", "aten::_standard_gamma_grad", "aten::_dirichlet_grad"}) {
    book.rule(op, elementwise());
  }
  for (const char* op : {"aten::fake_quantize_per_tensor_affine_cachemask",
                         "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"}) {
    book.rule(op, "..., ~, ~, ~ -> ..., ...").outputs(quantized_outputs);
  }
  book.rule("aten::fake_quantize_per_channel_affine_cachemask", "X[axis!], ~, ~ -> X[axis], X[axis]")
      .outputs(quantized_outputs);
  // The buffer for backward has the sizes of the input for CPU kernels and is empty for CUDA. Both results are
  // contiguous on CPUs.
  const auto log_sigmoid = [](const OpArgs& op) {
    return Rule(is_cuda_call(op) ? "... -> ..., ~" : "... -> ..., ...");
  };
  book.rule("aten::log_sigmoid_forward", log_sigmoid, "... -> ..., ...; on CUDA ... -> ..., ~")
      .outputs([](const OpArgs& op) {
        OutputMeta meta = dense_meta(op.sizes(0), op.dtype(0));
        if (op.device() != c10::DeviceType::CPU) meta.strides = at::infer_dense_strides(op.sizes(0), op.strides(0));
        return std::vector{meta, is_cuda_call(op) ? dense_meta({0}, op.dtype(0)) : meta};
      });
}

}  // namespace

void add_pointwise_rules(RuleBook& book) {
  static const Rule shared = elementwise();
  book.for_tag(at::Tag::pointwise, [](const OpArgs&) { return shared; });
  add_linear(book);
  add_backward(book);
  add_moves(book);
  add_untagged(book);
  book.replicate("aten::equal", "one value for all elements");
}

}  // namespace dtensor
