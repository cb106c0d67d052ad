// Packs and unpacks lists of tensors.
#include "comm/memory/packed.h"

#include <ATen/ATen.h>

#include "comm/memory/copy.h"
#include "comm/memory/pool/buffer_pool.h"

namespace dtensor {
namespace {

constexpr std::int64_t kPackedAlignment = 16;  // of each tensor in the packed bytes, suitable for any dtype

std::int64_t aligned(std::int64_t bytes, std::int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

at::Tensor buffer_for(std::int64_t numel, const at::Tensor& like, at::ScalarType dtype) {
  if (like.is_cpu()) return pooled_empty({numel}, dtype);
  return at::empty({numel}, at::TensorOptions(dtype).device(like.device()));
}

}  // namespace

void copy_on_device(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() == 0) return;
  to.is_cpu() ? copy_tensor(to, from) : static_cast<void>(to.copy_(from));
}

Packed Packed::bytes(at::TensorList list) { return make(list, at::kByte, kPackedAlignment); }
Packed Packed::numbers(at::TensorList list) { return make(list, list[0].scalar_type(), 1); }

void Packed::fill(at::TensorList list) const {
  for (std::size_t k = 0; k < list.size(); ++k) {
    is_block(list[k]) ? copy_bytes(place(k), list[k].const_data_ptr(), list[k].nbytes())
                      : copy_on_device(part(k, list[k]), list[k]);
  }
}

void Packed::unpack(at::TensorList list) const {
  for (std::size_t k = 0; k < list.size(); ++k) {
    is_block(list[k]) ? copy_bytes(list[k].data_ptr(), place(k), list[k].nbytes())
                      : copy_on_device(list[k], part(k, list[k]));
  }
}

Packed Packed::make(at::TensorList list, at::ScalarType dtype, std::int64_t alignment) {
  Packed packed;
  packed.offsets.reserve(list.size());
  std::int64_t total = 0;
  for (const auto& t : list) {
    packed.offsets.push_back(total);
    total += aligned(static_cast<std::int64_t>(t.nbytes()), alignment);
  }
  packed.flat = buffer_for(total / static_cast<std::int64_t>(c10::elementSize(dtype)), list[0], dtype);
  return packed;
}

bool Packed::is_block(const at::Tensor& t) const {
  const bool same = flat.scalar_type() == at::kByte || t.scalar_type() == flat.scalar_type();
  return same && t.is_cpu() && t.numel() > 0 && t.is_contiguous() && !t.is_conj() && !t.is_neg();
}

at::Tensor Packed::part(std::size_t k, const at::Tensor& like) const {
  const auto element = static_cast<std::int64_t>(flat.element_size());
  const auto bytes = static_cast<std::int64_t>(like.nbytes());
  const at::Tensor own = flat.narrow(0, offsets[k] / element, bytes / element);
  return (flat.scalar_type() == at::kByte ? own.view(like.scalar_type()) : own).view(like.sizes());
}

}  // namespace dtensor
