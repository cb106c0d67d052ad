// Removes duplicate tensors from a list.
#include <unordered_set>

#include "dtensor/tensor.h"
#include "internal/parameter_swap.h"

namespace dtensor {

std::vector<at::Tensor> unique_tensors(at::TensorList tensors) {
  std::vector<at::Tensor> once;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& tensor : tensors) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) once.push_back(tensor);
  }
  return once;
}

}  // namespace dtensor
