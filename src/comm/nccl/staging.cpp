#include "comm/nccl/staging.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace dtensor::nccl {
namespace {

bool is_ready(const at::Tensor& t, c10::Device device) {
  return t.device().type() == device.type() && t.is_contiguous() && !t.is_conj() && !t.is_neg();
}

bool are_adjacent(at::TensorList list, c10::Device device) {
  const auto* end = static_cast<const char*>(list[0].const_data_ptr());
  for (const at::Tensor& t : list) {
    if (!is_ready(t, device) || t.const_data_ptr() != end) return false;
    end += t.nbytes();
  }
  return true;
}

}  // namespace

bool have_equal_numel(at::TensorList list) {
  return std::all_of(list.begin(), list.end(), [&](const at::Tensor& t) { return t.numel() == list[0].numel(); });
}

std::vector<at::Tensor> staged_tensors(at::TensorList list, c10::Device device, bool filled, bool adjacent) {
  const bool together = adjacent && !are_adjacent(list, device);
  at::Tensor flat;
  if (together) flat = at::empty({std::ssize(list), list[0].numel()}, list[0].options().device(device));
  std::vector<at::Tensor> out;
  for (const at::Tensor& t : list) {
    const bool as_is = !together && is_ready(t, device);
    if (together) {
      out.push_back(flat[std::ssize(out)].view(t.sizes()));
    } else {
      out.push_back(as_is ? t : at::empty(t.sizes(), t.options().device(device)));
    }
    if (!as_is && filled) out.back().copy_(t);
  }
  return out;
}

}  // namespace dtensor::nccl
