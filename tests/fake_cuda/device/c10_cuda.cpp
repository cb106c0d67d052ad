// c10's streams and allocator over the simulator. The id of a stream is its index on its device.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include "fake_cuda/device/memory.h"
#include "fake_cuda/device/threads.h"

namespace c10::cuda {
namespace {

namespace fake = dtensor::test::fake_cuda;

int resolved(DeviceIndex device) { return device < 0 ? fake::current_device() : device; }

CUDAStream stream_of(int device, int index) {
  return CUDAStream(Stream(Stream::UNSAFE, Device(kCUDA, static_cast<DeviceIndex>(device)), index));
}

}  // namespace

cudaStream_t CUDAStream::stream() const {
  auto& simulator = fake::Simulator::instance();
  const auto lock = simulator.lock();
  return id() == 0 ? nullptr : &simulator.stream(device_index(), static_cast<int>(id()));
}

void CUDAStream::synchronize() const {
  const CUDAGuard guard(device());
  TORCH_CHECK(cudaStreamSynchronize(stream()) == cudaSuccess, cudaGetErrorString(cudaErrorLaunchFailure));
}

CUDAStream getStreamFromPool(bool isHighPriority, DeviceIndex device) {
  auto& simulator = fake::Simulator::instance();
  const auto lock = simulator.lock();
  return stream_of(resolved(device), simulator.pool_stream(resolved(device), isHighPriority).index);
}

CUDAStream getStreamFromExternal(cudaStream_t stream, DeviceIndex device) {
  if (stream == nullptr) return stream_of(resolved(device), 0);
  TORCH_CHECK(stream->device == device, "expected a stream of device ", device, ", got ", fake::name_of(*stream));
  return stream_of(device, stream->index);
}

CUDAStream getDefaultCUDAStream(DeviceIndex device) { return stream_of(resolved(device), 0); }
CUDAStream getCurrentCUDAStream(DeviceIndex device) {
  return stream_of(resolved(device), fake::current_stream_index(resolved(device)));
}
void setCurrentCUDAStream(CUDAStream stream) {
  fake::set_current_stream_index(stream.device_index(), static_cast<int>(stream.id()));
}

namespace CUDACachingAllocator {

void recordStream(const DataPtr& memory, CUDAStream stream) {
  fake::Memory::instance().record_stream(memory.get(), static_cast<int>(stream.id()));
}

}  // namespace CUDACachingAllocator
}  // namespace c10::cuda
