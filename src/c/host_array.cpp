// Checks an array of the host program before ATen accesses its memory.
#include "c/host_array.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

namespace dtensor::c {

namespace {

constexpr std::int64_t kMaxElements = std::int64_t{1} << 59;  // their bytes are below 2^63

void check_stride(int dim, std::int64_t size, std::int64_t stride) {
  std::int64_t extent = 0;
  TORCH_CHECK_VALUE(stride >= 0, "expected a stride >= 0 of dimension ", dim, ", got ", stride);
  TORCH_CHECK_VALUE(!__builtin_mul_overflow(size, stride, &extent) && extent <= kMaxElements, "expected dimension ",
                    dim, " to extend over at most 2^59 elements, got ", size, " indices of stride ", stride);
}

}  // namespace

at::ScalarType scalar_type(dtensor_dtype dtype) {
  switch (dtype) {
    case DTENSOR_FLOAT32:
      return at::kFloat;
    case DTENSOR_FLOAT64:
      return at::kDouble;
    case DTENSOR_INT32:
      return at::kInt;
    case DTENSOR_INT64:
      return at::kLong;
    case DTENSOR_INT8:
      return at::kChar;
    case DTENSOR_INT16:
      return at::kShort;
    case DTENSOR_UINT8:
      return at::kByte;
  }
  TORCH_CHECK_VALUE(false, "expected a dtensor_dtype, got ", static_cast<int>(dtype));
}

dtensor_dtype dtype_of(at::ScalarType type) {
  for (const auto dtype :
       {DTENSOR_FLOAT32, DTENSOR_FLOAT64, DTENSOR_INT32, DTENSOR_INT64, DTENSOR_INT8, DTENSOR_INT16, DTENSOR_UINT8}) {
    if (scalar_type(dtype) == type) return dtype;
  }
  TORCH_CHECK_VALUE(false, "expected a tensor of a dtensor_dtype, got one of ", type);
}

void check_host_array(const dtensor_host_array& array) {
  scalar_type(array.dtype);
  TORCH_CHECK_VALUE(array.ndim >= 0 && array.ndim <= 64, "expected 0 to 64 dimensions, got ", array.ndim);
  TORCH_CHECK_VALUE(array.ndim == 0 || array.sizes != nullptr, "expected ", array.ndim, " sizes, got a null pointer");
  std::int64_t count = 1;
  for (int dim = 0; dim < array.ndim; ++dim) {
    const std::int64_t size = array.sizes[dim];
    TORCH_CHECK_VALUE(size >= 0, "expected a size >= 0 of dimension ", dim, ", got ", size);
    TORCH_CHECK_VALUE(!__builtin_mul_overflow(count, size, &count) && count <= kMaxElements,
                      "expected sizes of at most 2^59 elements");
    if (array.strides == nullptr) continue;
    check_stride(dim, size, array.strides[dim]);
  }
  TORCH_CHECK_VALUE(count == 0 || array.data != nullptr, "expected the address of ", count,
                    " elements, got a null pointer");
}

at::Tensor view_of_host(const dtensor_host_array& array, c10::DeviceType device) {
  const at::IntArrayRef sizes(array.sizes, static_cast<std::size_t>(array.ndim));
  const at::DimVector dense(c10::contiguous_strides(sizes));
  const at::IntArrayRef strides =
      array.strides == nullptr ? at::IntArrayRef(dense) : at::IntArrayRef(array.strides, sizes.size());
  const auto options = at::TensorOptions(scalar_type(array.dtype)).device(device);
  if (device != c10::kCPU && c10::multiply_integers(sizes) == 0) return at::empty(sizes, options);
  return at::from_blob(array.data, sizes, strides, options);  // on the GPU of the address
}

}  // namespace dtensor::c
