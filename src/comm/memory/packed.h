// Tensors of a list one after the other in one flat tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor {

// to[...] = from[...] on one device.
void copy_on_device(const at::Tensor& to, const at::Tensor& from);

// Of bytes, where dtypes may differ, or of numbers that can be reduced. What lies in one block is copied without a
// tensor that stands for its place: a list has dozens of entries, and a view costs as much as copying a few kilobytes.
struct Packed {
  at::Tensor flat;
  std::vector<std::int64_t> offsets;  // in bytes

  // Room for `list`, which is not empty.
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
