// What no placement can say, and what only LibTorch's own kernels call: errors that give the reason. By name, or by how
// names begin, over all operators of the dispatcher.
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <set>
#include <span>

#include "sharding_prop/rules/rules.h"

namespace dtensor {
namespace {

using Names = std::span<const char* const>;

struct Reason {
  const char* why;
  Names prefixes = {};
  Names names = {};
};

constexpr const char* kSparsePrefixes[] = {"_sparse_",
                                           "sparse_",
                                           "_to_sparse",
                                           "_coalesce",
                                           "_convert_indices_",
                                           "_cslt_",
                                           "_spdiags",
                                           "_spsolve",
                                           "_nnz",
                                           "_dimI",
                                           "_dimV",
                                           "_indices",
                                           "_values",
                                           "crow_indices",
                                           "col_indices",
                                           "ccol_indices",
                                           "row_indices",
                                           "copy_sparse_",
                                           "resize_as_sparse",
                                           "_validate_compressed_sparse",
                                           "_validate_sparse"};
constexpr const char* kSparseNames[] = {"indices",  "indices_copy", "values",       "values_copy", "hspmm",
                                        "sspaddmm", "dense_dim",    "is_coalesced", "_to_dense",   "native_norm"};
constexpr const char* kQuantisedPrefixes[] = {"quantize",
                                              "dequantize",
                                              "q_per_channel",
                                              "q_scale",
                                              "q_zero",
                                              "_make_per_",
                                              "_empty_affine",
                                              "_empty_per_",
                                              "empty_quantized",
                                              "_fused_moving_avg_obs",
                                              "_dyn_quant",
                                              "_convert_weight_to_int4pack",
                                              "_weight_int4pack",
                                              "_mixed_dtypes_linear",
                                              "_fake_quantize_learnable"};
constexpr const char* kQuantisedNames[] = {"int_repr", "qscheme"};
constexpr const char* kNestedPrefixes[] = {"_nested_", "_jagged_", "_padded_dense_to_jagged"};
constexpr const char* kNestedNames[] = {"to_padded_tensor", "_pack_padded_sequence"};
constexpr const char* kVendorPrefixes[] = {"miopen_",
                                           "mkldnn_",
                                           "_mkldnn_",
                                           "_mps_",
                                           "mps_",
                                           "cudnn_convolution",
                                           "_nnpack_",
                                           "cudnn_affine_grid",
                                           "_triton_",
                                           "_cudnn_attention",
                                           "_efficient_attention",
                                           "_flash_attention",
                                           "_cudnn_init",
                                           "_scaled_dot_product_attention_math_for_mps",
                                           "_scaled_dot_product_fused_attention_overrideable",
                                           "_fill_mem_eff",
                                           "_use_cudnn_",
                                           "_use_miopen_",
                                           "_scaled_grouped_mm",
                                           "_slow_conv2d_backward"};
constexpr const char* kVendorNames[] = {"to_mkldnn",         "max_pool2d_backward", "_lstm_mps",
                                        "lstm_mps_backward", "matmul_backward",     "_fused_dropout"};
constexpr const char* kStatisticsPrefixes[] = {"batch_norm_stats", "batch_norm_elemt", "batch_norm_gather",
                                               "batch_norm_backward_", "batch_norm_update_stats"};
constexpr const char* kForwardPrefixes[] = {"_make_dual"};
constexpr const char* kForwardNames[] = {"_new_zeros_with_same_feature_meta", "glu_jvp", "glu_backward_jvp"};
constexpr const char* kStoragePrefixes[] = {"set.", "set_", "_resize_output", "_copy_from"};
constexpr const char* kStorageNames[] = {
    "set",         "shallow_copy_data_", "is_set_to", "_has_same_storage_numel", "slice_inverse", "from_file",
    "_pin_memory", "record_stream",      "is_pinned"};
constexpr const char* kTestPrefixes[] = {"_test_", "_foobar"};
constexpr const char* kRandomPrefixes[] = {"_philox_"};
constexpr const char* kRandomNames[] = {"rrelu_with_noise_functional"};

// Constants: rules are added while other files' static objects are made.
constexpr Reason kReasons[] = {
    {"sparse layouts have no placement", kSparsePrefixes, kSparseNames},
    {"quantised tensors have no placement", kQuantisedPrefixes, kQuantisedNames},
    {"nested tensors have no placement", kNestedPrefixes, kNestedNames},
    {"a kernel of one vendor, which the general operator calls by itself", kVendorPrefixes, kVendorNames},
    {"statistics of one process; native_batch_norm is over the whole batch by itself", kStatisticsPrefixes, Names{}},
    {"forward-mode derivatives are not carried by DTensors", kForwardPrefixes, kForwardNames},
    {"a DTensor has no storage of its own", kStoragePrefixes, kStorageNames},
    {"the library's own tests", kTestPrefixes, Names{}},
    {"random numbers of DTensors come from the mesh's own generator", kRandomPrefixes, kRandomNames},
};

bool begins(const std::string& name, const char* prefix) { return name.rfind(prefix, 0) == 0; }

const char* reason_of(const std::string& name) {
  for (const Reason& reason : kReasons) {
    const auto is = [&](const char* other) { return name == other; };
    if (std::any_of(reason.names.begin(), reason.names.end(), is)) return reason.why;
    const auto starts = [&](const char* prefix) { return begins(name, prefix); };
    if (std::any_of(reason.prefixes.begin(), reason.prefixes.end(), starts)) return reason.why;
  }
  return nullptr;
}

}  // namespace

void add_refused(RuleBook& book) {
  std::set<std::string> names;
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (begins(op.name, "aten::")) names.insert(op.name);
  }
  for (const std::string& name : names) {
    if (const char* why = reason_of(name.substr(6)); why != nullptr) book.refuse(name, why);
  }
  book.refuse("aten::normal.out", "call normal_ on the DTensor");
}

}  // namespace dtensor
