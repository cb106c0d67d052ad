// ATen's kernels for the simulated devices: the CPU's kernels on the same memory. A kernel runs when the queue of the
// current stream is empty. The accesses to its operands are checked.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <cstring>
#include <utility>

#include "fake_cuda/device/memory.h"
#include "fake_cuda/device/threads.h"

namespace dtensor::test::fake_cuda {
namespace {

// The same elements as a CPU tensor.
at::Tensor on_host(const at::Tensor& t) {
  if (t.is_cpu()) return t;
  return at::from_blob(t.mutable_data_ptr(), t.sizes(), t.strides(), at::TensorOptions(t.scalar_type()));
}

struct Operand {
  at::Tensor tensor;
  bool write;
};

// One kernel on the current stream of the operands' device.
class Kernel {
 public:
  Kernel(const std::string& name, const std::vector<Operand>& operands) : name_(name) {
    if (current_kernel != nullptr) return;  // a part of another kernel
    const auto first =
        std::find_if(operands.begin(), operands.end(), [](const Operand& o) { return o.tensor.is_cuda(); });
    if (first == operands.end()) return;
    device_ = first->tensor.get_device();
    auto& simulator = Simulator::instance();
    auto lock = simulator.lock();
    CUstream_st& stream = current_stream(device_);
    simulator.start_operation(stream);
    for (const Operand& o : operands) note(o, stream);
    const auto outcome = simulator.drain(lock, stream, name_);
    TORCH_CHECK(outcome == Outcome::done, name_, ": ", simulator.failure());
    current_kernel = &name_;
  }
  ~Kernel() {
    if (current_kernel == &name_) current_kernel = nullptr;
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // The host waits for the kernel.
  void complete() const {
    if (current_kernel != &name_) return;
    auto& simulator = Simulator::instance();
    const auto lock = simulator.lock();
    join(simulator.host(device_), current_stream(device_).clock);
  }

 private:
  void note(const Operand& o, const CUstream_st& stream) const {
    if (!o.tensor.is_cuda() || o.tensor.numel() == 0) return;
    TORCH_CHECK(o.tensor.get_device() == device_, name_, ": expected all tensors on device ", device_,
                ", got one on device ", o.tensor.get_device());
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < o.tensor.dim(); ++i) last += (o.tensor.size(i) - 1) * o.tensor.stride(i);
    const auto bytes = static_cast<std::size_t>(last + 1) * o.tensor.element_size();
    const void* data = o.tensor.const_data_ptr();
    auto& memory = Memory::instance();
    const auto block = memory.find(data, bytes, device_);
    TORCH_CHECK(block != nullptr, name_, ": an operand is not in allocated memory of device ", device_);
    memory.access(*block, stream, data, bytes, o.write, name_);
  }

  std::string name_;
  int device_ = 0;
};

std::vector<Operand> operands_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::vector<Operand> list;
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[stack.size() - arguments.size() + i];
    const bool write = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    if (value.isTensor() && value.toTensor().defined()) list.push_back({value.toTensor(), write});
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) list.push_back({t, write});
    }
    if (!value.isOptionalTensorList()) continue;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
      if (t && t->defined()) list.push_back({*t, write});
    }
  }
  return list;
}

// Kernels of a real device accept no CPU tensors except scalars and indices.
void check_devices(const c10::OperatorHandle& op, const std::vector<Operand>& operands) {
  if (op.operator_name().name.find("index") != std::string::npos) return;
  for (const auto& [t, write] : operands) {
    TORCH_CHECK(t.dim() == 0 || t.is_cuda(), op.operator_name(),
                ": expected all tensors to be on the same device, but found one of sizes ", t.sizes(), " on ",
                t.device());
  }
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto operands = operands_of(op, *stack);
  check_devices(op, operands);
  const Kernel kernel(op.operator_name().name, operands);
  at::native::cpu_fallback(op, stack);
  if (op.operator_name().name == "aten::_local_scalar_dense") kernel.complete();
}

c10::cuda::CUDAGuard guard_of(std::optional<at::Device> device) {
  return c10::cuda::CUDAGuard(device && device->has_index() ? device->index()
                                                            : static_cast<c10::DeviceIndex>(current_device()));
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const auto guard = guard_of(device);
  return at::detail::empty_generic(size, &Memory::instance(), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const auto guard = guard_of(device);
  return at::detail::empty_strided_generic(size, stride, &Memory::instance(),
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA), dtype.value_or(at::kFloat));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  const auto guard = guard_of(self.device());
  auto* impl = self.unsafeGetTensorImpl();
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(size)) * self.element_size();
  if (impl->storage().nbytes() < bytes) {
    impl->unsafe_storage().set_data_ptr_noswap(Memory::instance().allocate(bytes));
    impl->unsafe_storage().set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
  return self;
}

// Whether a copy runs in the background: between a device and pinned memory, of bytes in one piece.
bool is_asynchronous(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (!non_blocking || current_kernel != nullptr || from.is_cuda() == to.is_cuda()) return false;
  const at::Tensor& host = from.is_cuda() ? to : from;
  return host.is_pinned() && from.is_contiguous() && to.is_contiguous() && from.sizes() == to.sizes() &&
         from.scalar_type() == to.scalar_type() && from.numel() > 0 && !from.is_neg() && !from.is_conj();
}

// Keeps the memory, but no tensor of a device: its end would need the lock, which the copy has.
void copy_later(const at::Tensor& from, const at::Tensor& to) {
  const Kernel order("aten::copy_", {{from, false}, {to, true}});
  auto& simulator = Simulator::instance();
  const auto lock = simulator.lock();
  const at::Tensor &device = from.is_cuda() ? from : to, host = from.is_cuda() ? to : from;
  const auto block = Memory::instance().find(device.const_data_ptr(), device.nbytes(), device.get_device());
  const auto copy = [block, host, source = from.const_data_ptr(), target = to.mutable_data_ptr(),
                     bytes = from.nbytes()] { std::memcpy(target, source, bytes); };
  simulator.push(current_stream(device.get_device()), {Item::Kind::copy, nullptr, nullptr, copy});
}

// The host waits for other copies to the CPU.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  if (is_asynchronous(self, to, non_blocking)) return copy_later(self, to), to;
  const Kernel kernel("aten::copy_", {{self, false}, {to, true}});
  on_host(to).copy_(self.is_neg() || self.is_conj() ? on_host(self.resolve_conj().resolve_neg()) : on_host(self));
  if (to.is_cpu()) kernel.complete();
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (to.sizes() != self.sizes()) to.resize_(self.sizes());
  return copy_from(self, to, false);
}
at::Tensor& copy_(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
  if (!self.is_same(from)) copy_from(from, self, non_blocking);
  return self;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  Memory::instance().record_stream(self.storage().data(), static_cast<int>(stream.id()));
}

// CUDA's flash kernels by those of the CPU.
using FlashResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
                               at::Tensor, at::Tensor>;
at::Tensor on_device(const at::Tensor& t, const at::Tensor& like) {
  const at::Tensor result = at::empty_like(t, like.options().dtype(t.scalar_type()));
  on_host(result).copy_(t);
  return result;
}

FlashResult flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout, bool causal, bool,
                  std::optional<double> scale) {
  TORCH_CHECK(!causal || q.size(2) == k.size(2), "CUDA's flash kernel aligns a causal mask at the last key");
  const Kernel kernel("aten::_scaled_dot_product_flash_attention", {{q, false}, {k, false}, {v, false}});
  const auto [out, lse] =
      at::_scaled_dot_product_flash_attention_for_cpu(on_host(q), on_host(k), on_host(v), dropout, causal, {}, scale);
  return {on_device(out, q), on_device(lse, q), {}, {}, q.size(2), k.size(2), {}, {}, {}};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
    const at::Tensor& lse, const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt, double dropout, bool causal,
    const at::Tensor&, const at::Tensor&, std::optional<double> scale) {
  TORCH_CHECK(lse.is_contiguous() && lse.scalar_type() == at::kFloat && grad.scalar_type() == q.scalar_type() &&
                  out.scalar_type() == q.scalar_type(),
              "CUDA's flash kernel: expected a contiguous log-sum-exp in float and equal types");
  const Kernel kernel("aten::_scaled_dot_product_flash_attention_backward",
                      {{grad, false}, {q, false}, {k, false}, {v, false}, {out, false}, {lse, false}});
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      on_host(grad), on_host(q), on_host(k), on_host(v), on_host(out), on_host(lse), dropout, causal, {}, scale);
  return {on_device(dq, q), on_device(dk, q), on_device(dv, q)};
}

// The host does not wait for the value.
void assert_async(const at::Tensor& condition, c10::string_view text) {
  const Kernel kernel("aten::_assert_async", {{condition, false}});
  TORCH_CHECK(*on_host(condition).const_data_ptr<bool>(), text);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_assert_async.msg", &assert_async);
  m.impl("_scaled_dot_product_flash_attention", &flash);
  m.impl("_scaled_dot_product_flash_attention_backward", &flash_backward);
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("record_stream", &record_stream);
  m.impl("as_strided",
         static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef, at::IntArrayRef, std::optional<std::int64_t>)>(
             &at::native::as_strided_tensorimpl));
  m.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  // Operators with a composite kernel, which would be used instead of the fallback, and kernels for the CPU and CUDA.
  for (const char* name : {"_grouped_mm", "native_layer_norm", "native_group_norm"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

}  // namespace
}  // namespace dtensor::test::fake_cuda
