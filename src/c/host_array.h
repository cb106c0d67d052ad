// Arrays of the host program as regular tensors that share their memory.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/c/dtensor.h"
#include "dtensor/comm.h"

namespace dtensor::c {

at::ScalarType scalar_type(dtensor_dtype dtype);
dtensor_dtype dtype_of(at::ScalarType type);  // throws for other types

// Throws if the array is not valid.
void check_host_array(const dtensor_host_array& array);
// A tensor that shares the memory of a valid array, on a device of this type, and does not own it.
at::Tensor view_of_host(const dtensor_host_array& array, c10::DeviceType device = c10::kCPU);

// Strides of a tensor of sizes `global` such that the library uses each local part as it is. It copies a local part
// that does not have the order of the global strides, or that has a gap between two dimensions where they have none. So
// the result has the order of the local parts, and a gap where one of them has a gap. Throws on all ranks if the local
// parts overlap themselves or have different orders. Collective.
at::DimVector agree_host_strides(const Communicator& ranks, const at::Tensor& local, at::IntArrayRef global);

}  // namespace dtensor::c
