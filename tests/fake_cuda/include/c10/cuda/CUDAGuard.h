// The part of c10's CUDA guards that src/comm/nccl may use, for tests on a LibTorch without CUDA.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

namespace c10::cuda {

class CUDAGuard {
 public:
  explicit CUDAGuard(DeviceIndex device) : previous_(current_device()) { cudaSetDevice(device); }
  explicit CUDAGuard(Device device) : CUDAGuard(device.index()) {}
  ~CUDAGuard() { cudaSetDevice(previous_); }
  CUDAGuard(const CUDAGuard&) = delete;
  CUDAGuard& operator=(const CUDAGuard&) = delete;

 private:
  DeviceIndex previous_;
};

// Sets the device of the stream, and the stream as the current one of its device.
class CUDAStreamGuard {
 public:
  explicit CUDAStreamGuard(Stream stream)
      : device_(stream.device_index()), previous_(getCurrentCUDAStream(stream.device_index())) {
    setCurrentCUDAStream(CUDAStream(stream));
  }
  ~CUDAStreamGuard() { setCurrentCUDAStream(previous_); }
  CUDAStreamGuard(const CUDAStreamGuard&) = delete;
  CUDAStreamGuard& operator=(const CUDAStreamGuard&) = delete;

 private:
  CUDAGuard device_;
  CUDAStream previous_;
};

}  // namespace c10::cuda
