// Refused operators: those that no placement expresses, and those that only LibTorch's own kernels call. The error
// gives the reason. Entries are names, or prefixes of names (*), of operators of the dispatcher.
#include <ATen/core/dispatch/Dispatcher.h>

#include <set>
#include <sstream>

#include "sharding_prop/rules/rules.h"

namespace dtensor {
namespace {

struct RefusalReason {
  const char *why, *names;
};

// constexpr, since rules may be added during static initialization of other files.
constexpr RefusalReason kRefusalReasons[] = {
    {"sparse layouts have no placement",
     "_sparse_* sparse_* _to_sparse* _coalesce* _convert_indices_* _cslt_* _spdiags* _spsolve* _nnz* _dimI* _dimV* "
     "_indices* _values* crow_indices* col_indices* ccol_indices* row_indices* copy_sparse_* resize_as_sparse* "
     "_validate_compressed_sparse* _validate_sparse* indices indices_copy values values_copy hspmm sspaddmm dense_dim "
     "is_coalesced _to_dense native_norm"},
    {"quantized tensors have no placement",
     "quantize* dequantize* q_per_channel* q_scale* q_zero* _make_per_* _empty_affine* _empty_per_* empty_quantized* "
     "_fused_moving_avg_obs* _dyn_quant* _convert_weight_to_int4pack* _weight_int4pack* _mixed_dtypes_linear* "
     "_fake_quantize_learnable* int_repr qscheme"},
    {"nested tensors have no placement", "_nested_* _jagged_* _padded_dense_to_jagged* to_padded_tensor"},
    {"a kernel of one vendor, which the general operator calls by itself",
     "miopen_* mkldnn_* _mkldnn_* _mps_* mps_* cudnn_convolution* _nnpack_* cudnn_affine_grid* _triton_* "
     "_cudnn_attention* _efficient_attention* _flash_attention* _cudnn_init* "
     "_scaled_dot_product_attention_math_for_mps* _scaled_dot_product_fused_attention_overrideable* _fill_mem_eff* "
     "_use_cudnn_* _use_miopen_* _scaled_grouped_mm* _slow_conv2d_backward* to_mkldnn max_pool2d_backward _lstm_mps "
     "lstm_mps_backward matmul_backward _fused_dropout"},
    {"statistics of one process; native_batch_norm computes those of the global batch",
     "batch_norm_stats* batch_norm_elemt* batch_norm_gather* batch_norm_backward_* batch_norm_update_stats*"},
    {"forward-mode derivatives are not carried by DTensors",
     "_make_dual* _new_zeros_with_same_feature_meta glu_jvp glu_backward_jvp"},
    {"a DTensor has no storage of its own",
     "set.* set_* _resize_output* _copy_from* set shallow_copy_data_ is_set_to _has_same_storage_numel slice_inverse "
     "from_file _pin_memory record_stream"},
    {"test operators of LibTorch", "_test_* _foobar*"},
    {"random numbers of DTensors come from the mesh's own generator", "_philox_* rrelu_with_noise_functional"},
};

// For example "set_*" for "set_data".
bool fits(std::string_view pattern, std::string_view name) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
}

}  // namespace

void add_unsupported_rules(RuleBook& book) {
  constexpr std::string_view kNamespace = "aten::";
  std::set<std::string> names;
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name.starts_with(kNamespace)) names.insert(op.name);
  }
  for (const auto& [why, patterns] : kRefusalReasons) {
    std::istringstream words(patterns);
    for (std::string pattern; words >> pattern;) {
      for (const std::string& name : names) {
        if (fits(pattern, std::string_view(name).substr(kNamespace.size()))) book.refuse(name, why);
      }
    }
  }
  book.refuse("aten::normal.out", "call normal_ on the DTensor");
}

}  // namespace dtensor
