// The table of local kernels by name. Each file of ops/local_kernels adds its kernels.
#include "ops/local_kernels/local_kernel.h"

namespace dtensor {

void add_aligned_row_kernels(LocalKernels& kernels);
void add_batch_norm_kernels(LocalKernels& kernels);
void add_convolution_kernels(LocalKernels& kernels);
void add_device_softmax_kernels(LocalKernels& kernels);
void add_embedding_kernels(LocalKernels& kernels);
void add_adaptive_pooling_kernels(LocalKernels& kernels);
void add_full_vector_kernels(LocalKernels& kernels);
void add_group_norm_kernels(LocalKernels& kernels);
void add_grouped_product_kernels(LocalKernels& kernels);
void add_index_sum_kernels(LocalKernels& kernels);
void add_linalg_kernels(LocalKernels& kernels);
void add_loss_kernels(LocalKernels& kernels);
void add_variance_kernels(LocalKernels& kernels);
void add_norm_kernels(LocalKernels& kernels);
void add_sort_kernels(LocalKernels& kernels);
void add_random_kernels(LocalKernels& kernels);
void add_plane_kernels(LocalKernels& kernels);
void add_reduction_kernels(LocalKernels& kernels);
void add_pooling_kernels(LocalKernels& kernels);
void add_resampling_kernels(LocalKernels& kernels);
void add_rms_norm_kernels(LocalKernels& kernels);
void add_row_kernels(LocalKernels& kernels);
void add_segment_kernels(LocalKernels& kernels);
void add_shuffle_kernels(LocalKernels& kernels);
void add_scan_kernels(LocalKernels& kernels);
void add_slice_kernels(LocalKernels& kernels);
void add_softmax_kernels(LocalKernels& kernels);
void add_tiled_attention_gradient_kernels(LocalKernels& kernels);
void add_tiled_attention_kernels(LocalKernels& kernels);
void add_tiled_convolution_kernels(LocalKernels& kernels);
void add_tiled_product_kernels(LocalKernels& kernels);
void add_tree_group_norm_kernels(LocalKernels& kernels);
void add_tree_sum_kernels(LocalKernels& kernels);

static constexpr void (*kAdders[])(LocalKernels&) = {add_adaptive_pooling_kernels,
                                                     add_aligned_row_kernels,
                                                     add_batch_norm_kernels,
                                                     add_convolution_kernels,
                                                     add_device_softmax_kernels,
                                                     add_embedding_kernels,
                                                     add_full_vector_kernels,
                                                     add_group_norm_kernels,
                                                     add_grouped_product_kernels,
                                                     add_index_sum_kernels,
                                                     add_linalg_kernels,
                                                     add_loss_kernels,
                                                     add_variance_kernels,
                                                     add_norm_kernels,
                                                     add_sort_kernels,
                                                     add_random_kernels,
                                                     add_plane_kernels,
                                                     add_pooling_kernels,
                                                     add_reduction_kernels,
                                                     add_resampling_kernels,
                                                     add_rms_norm_kernels,
                                                     add_row_kernels,
                                                     add_scan_kernels,
                                                     add_segment_kernels,
                                                     add_shuffle_kernels,
                                                     add_slice_kernels,
                                                     add_softmax_kernels,
                                                     add_tiled_attention_gradient_kernels,
                                                     add_tiled_attention_kernels,
                                                     add_tiled_convolution_kernels,
                                                     add_tiled_product_kernels,
                                                     add_tree_group_norm_kernels,
                                                     add_tree_sum_kernels};

LocalKernel find_local_kernel(std::string_view name) {
  static const LocalKernels kernels = [] {
    LocalKernels all;
    for (auto* add : kAdders) add(all);
    return all;
  }();
  const auto found = kernels.find(name);
  TORCH_CHECK(found != kernels.end(), "expected the name of a local kernel, got '", name, "'");
  return found->second;
}

}  // namespace dtensor
