// The part of c10's CUDA streams that src/comm/nccl may use, for tests on a LibTorch without CUDA. The functions are
// defined in fake_cuda/device/c10_cuda.cpp.
#pragma once

#include <c10/core/Stream.h>
#include <cuda_runtime_api.h>

namespace c10::cuda {

class CUDAStream {
 public:
  explicit CUDAStream(Stream stream) : stream_(stream) {}
  operator Stream() const { return stream_; }
  operator cudaStream_t() const { return stream(); }
  Stream unwrap() const { return stream_; }
  Device device() const { return stream_.device(); }
  DeviceIndex device_index() const { return stream_.device_index(); }
  StreamId id() const { return stream_.id(); }
  cudaStream_t stream() const;
  bool query() const { return cudaStreamQuery(stream()) == cudaSuccess; }
  void synchronize() const;
  friend bool operator==(const CUDAStream& a, const CUDAStream& b) { return a.stream_ == b.stream_; }
  friend bool operator!=(const CUDAStream& a, const CUDAStream& b) { return a.stream_ != b.stream_; }

 private:
  Stream stream_;
};

CUDAStream getStreamFromPool(bool isHighPriority = false, DeviceIndex device = -1);
CUDAStream getStreamFromExternal(cudaStream_t stream, DeviceIndex device);
CUDAStream getDefaultCUDAStream(DeviceIndex device = -1);
CUDAStream getCurrentCUDAStream(DeviceIndex device = -1);
void setCurrentCUDAStream(CUDAStream stream);

}  // namespace c10::cuda
