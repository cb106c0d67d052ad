// A list of tensors packed into one flat tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor {

// to[...] = from[...] on one device.
void copy_on_device(const at::Tensor& to, const at::Tensor& from);

// Packs bytes, where dtypes may differ, or numbers that can be reduced. Contiguous CPU tensors are copied without a
// view of the flat tensor: a list has dozens of entries, and a view costs as much as copying a few kilobytes.
struct Packed {
  at::Tensor flat;
  std::vector<std::int64_t> offsets;  // in bytes

  // Allocates space for `list`, which must not be empty.
  static Packed bytes(at::TensorList list);
  static Packed numbers(at::TensorList list);

  void fill(at::TensorList list) const;
  void unpack(at::TensorList list) const;

 private:
  static Packed make(at::TensorList list, at::ScalarType dtype, std::int64_t alignment);
  bool is_block(const at::Tensor& t) const;
  char* place(std::size_t k) const { return static_cast<char*>(flat.data_ptr()) + offsets[k]; }
  at::Tensor part(std::size_t k, const at::Tensor& like) const;
};

}  // namespace dtensor
