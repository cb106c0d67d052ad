// A device other than the CPU, for machines without one: PrivateUse1 with host memory, a guard that does nothing, and
// the CPU's kernels on copies. Code that mixes devices fails on it as on a real one.
#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>

namespace dtensor::test::fake {

inline constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;

struct Memory final : c10::Allocator {
  static void release(void* data) { std::free(data); }
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = bytes == 0 ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    return {data, data, &release, c10::Device(kDevice, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};
inline Memory memory;

// Host memory that a real device can copy from directly.
struct Pinned final : c10::Allocator {
  static inline std::mutex mutex;
  static inline std::set<const void*> known;
  static void release(void* data) {
    const std::lock_guard lock(mutex);
    known.erase(data);
    std::free(data);
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = bytes == 0 ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    const std::lock_guard lock(mutex);
    if (data != nullptr) known.insert(data);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};
inline Pinned pinned;

// Number of times that the host waited for a stream, over all threads.
inline std::atomic<int> stream_waits = 0;

// One device with one stream, whose work is finished when a call returns.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<kDevice> {
  static c10::Device only() { return {kDevice, 0}; }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, only()); }
  c10::Device exchangeDevice(c10::Device) const override { return only(); }
  c10::Device getDevice() const override { return only(); }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { ++stream_waits; }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  bool isPinnedPtr(const void* data) const override {
    const std::lock_guard lock(Pinned::mutex);
    return Pinned::known.count(data) > 0;
  }
};

// Must run before the first tensor is created. Further calls have no effect.
inline void start() {
  static const bool once = [] {
    c10::register_privateuse1_backend("fake");
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
  }();
  static_cast<void>(once);
}

// The same elements as a CPU tensor.
inline at::Tensor on_host(const at::Tensor& t) {
  if (t.is_cpu()) return t;
  return at::from_blob(t.mutable_data_ptr(), t.sizes(), t.strides(), at::TensorOptions(t.scalar_type()));
}

inline at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                        std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

inline at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                                std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

inline const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(size)) * self.element_size();
  if (impl->storage().nbytes() < bytes) {
    impl->unsafe_storage().set_data_ptr_noswap(memory.allocate(bytes));
    impl->unsafe_storage().set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
  return self;
}

// Number of times that the host read device memory, over all threads; a real device would synchronize each time. Copies
// that implement the device's own kernels do not count.
inline std::atomic<int> host_reads = 0;
// Number of copies to the device for which the host would wait: only those from pinned memory are asynchronous, if the
// caller permits that.
inline std::atomic<int> blocking_copies = 0;
inline thread_local bool in_kernel = false;

inline at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  if (to.is_cpu() && !in_kernel) ++host_reads;
  const bool is_asynchronous = non_blocking && self.is_pinned();
  if (self.is_cpu() && self.numel() > 0 && !is_asynchronous && !in_kernel) ++blocking_copies;
  on_host(to).copy_(on_host(self));
  return to;
}
inline at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (to.sizes() != self.sizes()) to.resize_(self.sizes());
  return copy_from(self, to, false);
}

// Kernels of a real device accept no CPU tensors except scalars and indices.
inline void check_devices(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (op.operator_name().name.find("index") != std::string::npos) return;
  const auto check = [&](const at::Tensor& t) {
    TORCH_CHECK(!t.defined() || t.dim() == 0 || t.device().type() == kDevice, op.operator_name(),
                ": expected all tensors to be on the same device, but found one of sizes ", t.sizes(), " on ",
                t.device());
  };
  const auto count = op.schema().arguments().size();
  for (auto i = stack.size() - count; i < stack.size(); ++i) {
    if (stack[i].isTensor()) check(stack[i].toTensor());
    if (!stack[i].isTensorList()) continue;
    for (const auto& t : stack[i].toTensorVector()) check(t);
  }
}

inline void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_devices(op, *stack);
  if (op.operator_name().name == "aten::_local_scalar_dense") ++host_reads;
  const bool outer = std::exchange(in_kernel, true);
  at::native::cpu_fallback(op, stack);
  in_kernel = outer;
}

// As GPU kernels, which require tensors of one floating-point dtype.
inline void of_one_type(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto type = c10::ScalarType::Undefined;
  for (const c10::IValue& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().is_floating_point()) continue;
    const auto its = value.toTensor().scalar_type();
    TORCH_CHECK(type == c10::ScalarType::Undefined || type == its, "fake: expected scalar type ", type, " but found ",
                its);
    type = its;
  }
  on_cpu(op, stack);
}

}  // namespace dtensor::test::fake
