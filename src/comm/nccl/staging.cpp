// Decides which tensors are passed to NCCL as they are, and which are copied or packed first.
#include "comm/nccl/staging.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace dtensor::nccl {
namespace {

bool are_adjacent(at::TensorList row) {
  const auto* end = static_cast<const char*>(row[0].const_data_ptr());
  for (const at::Tensor& t : row) {
    if (!t.is_contiguous() || t.const_data_ptr() != end) return false;
    end += t.nbytes();
  }
  return true;
}

at::Tensor contiguous_copy(const at::Tensor& t) { return at::empty(t.sizes(), t.options()); }

}  // namespace

bool have_equal_numel(at::TensorList list) {
  return std::all_of(list.begin(), list.end(), [&](const at::Tensor& t) { return t.numel() == list[0].numel(); });
}

std::vector<at::Tensor> staged_tensors(at::TensorList list, std::size_t row, bool filled) {
  std::vector<at::Tensor> out;
  for (std::size_t begin = 0; begin < list.size(); begin += row) {
    const auto tensors = list.slice(begin, row);
    const bool together = row > 1 && have_equal_numel(tensors) && !are_adjacent(tensors);
    at::Tensor flat;
    if (together) flat = at::empty({std::ssize(tensors), tensors[0].numel()}, tensors[0].options());
    for (std::size_t i = 0; i < row; ++i) {
      const at::Tensor& t = tensors[i];
      const bool as_is = !together && t.is_contiguous();
      out.push_back(as_is ? t : together ? flat[static_cast<std::int64_t>(i)].view(t.sizes()) : contiguous_copy(t));
      if (!as_is && filled) out.back().copy_(t);
    }
  }
  return out;
}

}  // namespace dtensor::nccl
