// Registers the simulated devices with c10 and ATen as CUDA: the guard with streams and events, the hooks, and pinned
// memory.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include "fake_cuda/device/memory.h"
#include "fake_cuda/device/threads.h"
#include "other_device/fake_device.h"

namespace dtensor::test::fake_cuda {
namespace {

void check(cudaError_t error) { TORCH_CHECK(error == cudaSuccess, cudaGetErrorString(error)); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::cuda::CUDAStream cuda(const c10::Stream& stream) { return c10::cuda::CUDAStream(stream); }

  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device getDevice() const override { return {c10::kCUDA, static_cast<c10::DeviceIndex>(current_device())}; }
  void setDevice(c10::Device d) const override { check(cudaSetDevice(d.index())); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { cudaSetDevice(d.index()); }
  c10::Device exchangeDevice(c10::Device d) const override {
    const auto previous = getDevice();
    setDevice(d);
    return previous;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device d) const override { return c10::cuda::getCurrentCUDAStream(d.index()); }
  c10::Stream getDefaultStream(c10::Device d) const override { return c10::cuda::getDefaultCUDAStream(d.index()); }
  c10::Stream getNewStream(c10::Device d, int priority) const override {
    return c10::cuda::getStreamFromPool(priority < 0, d.index());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool high_priority) const override {
    return c10::cuda::getStreamFromPool(high_priority, d.index());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto previous = c10::cuda::getCurrentCUDAStream(stream.device_index());
    c10::cuda::setCurrentCUDAStream(cuda(stream));
    return previous;
  }
  bool queryStream(const c10::Stream& stream) const override { return cuda(stream).query(); }
  void synchronizeStream(const c10::Stream& stream) const override { cuda(stream).synchronize(); }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    c10::cuda::CUDACachingAllocator::recordStream(memory, cuda(stream));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    const c10::cuda::CUDAGuard guard(stream.device());
    if (*event == nullptr) {
      cudaEvent_t made = nullptr;
      check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
      *event = made;
    }
    check(cudaEventRecord(static_cast<cudaEvent_t>(*event), cuda(stream).stream()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const c10::cuda::CUDAGuard guard(stream.device());
    check(cudaStreamWaitEvent(cuda(stream).stream(), static_cast<cudaEvent_t>(event), 0));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || cudaEventQuery(static_cast<cudaEvent_t>(event)) == cudaSuccess;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) check(cudaEventSynchronize(static_cast<cudaEvent_t>(event)));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(event));
  }
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  int getNumGPUs() const override { return kDevices; }
  c10::DeviceIndex current_device() const override {
    return static_cast<c10::DeviceIndex>(fake_cuda::current_device());
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &fake::pinned; }
  bool isPinnedPtr(const void* data) const override {
    const std::lock_guard lock(fake::Pinned::mutex);
    return fake::Pinned::known.count(data) > 0;
  }
};

const bool allocator_is_set = (c10::SetAllocator(c10::kCUDA, &Memory::instance()), true);

}  // namespace
}  // namespace dtensor::test::fake_cuda

using DtensorFakeCudaGuard = dtensor::test::fake_cuda::Guard;
using DtensorFakeCudaHooks = dtensor::test::fake_cuda::Hooks;
C10_REGISTER_GUARD_IMPL(CUDA, DtensorFakeCudaGuard)
namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, DtensorFakeCudaHooks)
}  // namespace at
