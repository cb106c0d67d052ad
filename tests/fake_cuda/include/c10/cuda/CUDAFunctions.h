// The part of c10's CUDA functions that src/comm/nccl may use, for tests on a LibTorch without CUDA.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

namespace c10::cuda {

inline DeviceIndex device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? static_cast<DeviceIndex>(count) : DeviceIndex{0};
}
inline DeviceIndex current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return static_cast<DeviceIndex>(device);
}

}  // namespace c10::cuda
