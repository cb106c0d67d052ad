// The list of operators with unboxed kernels: those that a training step calls most often.
#include "ops/dispatch/unboxed_kernel.h"  // first: the per-operator headers are not self-contained

#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_addcmul_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/_foreach_zero_ops.h>
#include <ATen/ops/_fused_adam_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/linear_backward_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>

#include <unordered_map>

#include "internal/library_operator.h"

namespace dtensor::unboxed {
namespace {

using MakeKernel = c10::KernelFunction (*)(const OpEntry&);
using Table = std::unordered_map<c10::OperatorName, MakeKernel>;

template <class... Ops>
Table make_table() {
  Table table;
  (table.emplace(c10::OperatorName(Ops::name, Ops::overload_name), &kernel_of<Ops>), ...);
  return table;
}

// An operator of this library in the form of at::_ops.
template <class Named, class Ret, class... Args>
struct LibraryOperator {
  using schema = Ret(Args...);
  static constexpr const char* overload_name = "";
  static const c10::TypedOperatorHandle<schema>& handle() {
    static const auto op = library_operator<schema>(Named::name);
    return op;
  }
  static Ret call(Args... args) { return handle().call(std::forward<Args>(args)...); }
  static Ret redispatch(c10::DispatchKeySet keys, Args... args) {
    return handle().redispatch(keys, std::forward<Args>(args)...);
  }
};

using T = const at::Tensor&;
struct GatedProduct : LibraryOperator<GatedProduct, at::Tensor, T, T, std::string_view> {
  static constexpr const char* name = "dtensor::gated_product";
};
struct GatedProductBackward
    : LibraryOperator<GatedProductBackward, std::tuple<at::Tensor, at::Tensor>, T, T, T, std::string_view> {
  static constexpr const char* name = "dtensor::gated_product_backward";
};

Table hottest() {
  return make_table<
      at::_ops::add_Tensor, at::_ops::sub_Tensor, at::_ops::mul_Tensor, at::_ops::div_Tensor, at::_ops::add__Tensor,
      at::_ops::sub__Tensor, at::_ops::mul__Tensor, at::_ops::div__Tensor, at::_ops::add_Scalar, at::_ops::mul_Scalar,
      at::_ops::sub_Scalar, at::_ops::div_Scalar, at::_ops::add__Scalar, at::_ops::mul__Scalar,
      at::_ops::masked_fill_Scalar, at::_ops::linalg_vector_norm, at::_ops::neg, at::_ops::pow_Tensor_Scalar,
      at::_ops::rsqrt, at::_ops::exp, at::_ops::log, at::_ops::sqrt, at::_ops::tanh, at::_ops::sigmoid, at::_ops::relu,
      at::_ops::gelu, at::_ops::gelu_backward, at::_ops::silu, at::_ops::silu_backward, at::_ops::threshold_backward,
      at::_ops::where_self, at::_ops::mm, at::_ops::bmm, at::_ops::addmm, at::_ops::linear, at::_ops::linear_backward,
      at::_ops::view, at::_ops::_unsafe_view, at::_ops::t, at::_ops::transpose_int, at::_ops::permute, at::_ops::expand,
      at::_ops::unsqueeze, at::_ops::squeeze_dim, at::_ops::select_int, at::_ops::slice_Tensor, at::_ops::alias,
      at::_ops::detach, at::_ops::clone, at::_ops::copy_, at::_ops::zero_, at::_ops::fill__Scalar, at::_ops::sum,
      at::_ops::sum_dim_IntList, at::_ops::mean, at::_ops::mean_dim, at::_ops::native_layer_norm,
      at::_ops::native_layer_norm_backward, at::_ops::_softmax, at::_ops::_softmax_backward_data,
      at::_ops::_log_softmax, at::_ops::_log_softmax_backward_data, at::_ops::embedding, at::_ops::_to_copy,
      at::_ops::_foreach_add__List, at::_ops::_foreach_add_List, at::_ops::_foreach_mul__List,
      at::_ops::_foreach_mul__Scalar, at::_ops::_foreach_mul__Tensor, at::_ops::_foreach_add__Scalar,
      at::_ops::_foreach_lerp__Scalar, at::_ops::_foreach_addcmul__Scalar, at::_ops::_foreach_addcdiv__Scalar,
      at::_ops::_foreach_div__List, at::_ops::_foreach_sqrt_, at::_ops::_foreach_zero_, at::_ops::_fused_adamw_,
      at::_ops::_fused_adam_, GatedProduct, GatedProductBackward>();
}

}  // namespace

std::optional<c10::KernelFunction> find_kernel(const OpEntry& entry) {
  static const auto table = hottest();
  const auto it = table.find(entry.name());
  if (it == table.end()) return std::nullopt;
  return it->second(entry);
}

}  // namespace dtensor::unboxed
