// tensor_split by a tensor of indices: ATen's composite kernel reads the indices' memory, which a DTensor has not.
#include <ATen/ops/item.h>
#include <ATen/ops/select.h>
#include <ATen/ops/tensor_split.h>

#include "ops/special/special.h"

namespace dtensor {

std::vector<at::Tensor> tensor_split_special(const at::Tensor& self, const at::Tensor& where, std::int64_t dim) {
  TORCH_CHECK(where.scalar_type() == at::kLong && where.dim() <= 1,
              "tensor_split expected tensor_indices_or_sections to be a zero-dimensional or one-dimensional tensor of ",
              "int64, but got ", where.sizes(), " of ", where.scalar_type());
  if (where.dim() == 0) return at::tensor_split(self, where.item<std::int64_t>(), dim);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < where.size(0); ++i) indices.push_back(where.select(0, i).item<std::int64_t>());
  return at::tensor_split(self, indices, dim);
}

}  // namespace dtensor
