// Which families of local kernels exist.
#include "ops/local_call.h"

#include <mutex>

namespace dtensor {

void register_argmax_kernels();
void register_batch_norm_kernels();
void register_convolution_kernels();
void register_ctc_loss_kernels();
void register_embedding_kernels();
void register_layer_norm_kernels();
void register_loss_kernels();
void register_nll_loss_kernels();
void register_norm_kernels();
void register_random_kernels();
void register_reduction_kernels();
void register_scan_kernels();
void register_softmax_kernels();
void register_sort_kernels();
void register_squeeze_kernels();
void register_topk_kernels();
void register_variance_kernels();

void register_all_local_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_argmax_kernels();
    register_batch_norm_kernels();
    register_convolution_kernels();
    register_ctc_loss_kernels();
    register_embedding_kernels();
    register_layer_norm_kernels();
    register_loss_kernels();
    register_nll_loss_kernels();
    register_norm_kernels();
    register_random_kernels();
    register_reduction_kernels();
    register_scan_kernels();
    register_softmax_kernels();
    register_sort_kernels();
    register_squeeze_kernels();
    register_topk_kernels();
    register_variance_kernels();
  });
}

}  // namespace dtensor
