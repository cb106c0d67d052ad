// Kernels of SwiGLU by device, their loops on the CPU, and the autograd node.
#include "moe/experts/swiglu.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <array>

#include "internal/kernels/gpu_kernels.h"
#include "moe/experts/swiglu_arithmetic.h"
#include "moe/local_function.h"

namespace dtensor::moe {
namespace {

constexpr std::int64_t kGrain = 1 << 14;  // minimum number of elements per thread

#define DTENSOR_DISPATCH(x, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, (x).scalar_type(), "swiglu", __VA_ARGS__)

void forward_loop(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out) {
  DTENSOR_DISPATCH(gate, [&] {
    const auto *g = gate.const_data_ptr<scalar_t>(), *u = up.const_data_ptr<scalar_t>();
    auto* y = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, gate.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) {
        y[i] = static_cast<scalar_t>(swiglu_of(static_cast<float>(g[i]), static_cast<float>(u[i])));
      }
    });
  });
}

void backward_loop(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up, const at::Tensor& d_gate,
                   const at::Tensor& d_up) {
  DTENSOR_DISPATCH(gate, [&] {
    const auto *dy = grad.const_data_ptr<scalar_t>(), *g = gate.const_data_ptr<scalar_t>(),
               *u = up.const_data_ptr<scalar_t>();
    auto *dg = d_gate.mutable_data_ptr<scalar_t>(), *du = d_up.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, gate.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) {
        const auto d = swiglu_gradients(static_cast<float>(dy[i]), static_cast<float>(g[i]), static_cast<float>(u[i]));
        dg[i] = static_cast<scalar_t>(d.gate), du[i] = static_cast<scalar_t>(d.up);
      }
    });
  });
}

constexpr SwigluKernels kLoops{&forward_loop, &backward_loop};

// Written while libraries are loaded, read-only afterwards.
std::array<SwigluKernels, c10::COMPILE_TIME_MAX_DEVICE_TYPES>& registered() {
  static std::array<SwigluKernels, c10::COMPILE_TIME_MAX_DEVICE_TYPES> kernels;
  return kernels;
}

// Null: ATen operators.
const SwigluKernels* kernels_for(const at::Tensor& gate, const at::Tensor& up) {
  const auto device = gate.device().type();
  const bool narrow = gate.scalar_type() != at::kDouble && gate.scalar_type() == up.scalar_type();
  if (!narrow || !takes_gpu_kernel(GpuKernel::swiglu, device)) return nullptr;
  if (gate.is_cpu()) return &kLoops;
  const auto& kernels = registered()[static_cast<std::size_t>(device)];
  return kernels.forward != nullptr ? &kernels : nullptr;
}

struct SwigluBackward final : Node {
  SwigluBackward(const at::Tensor& g, const at::Tensor& u, const SwigluKernels& k)
      : gate(g, false), up(u, false), kernels(k) {}
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "swiglu of packed experts does not support double backward; use separate experts (run_experts with a ",
                "list)");
    const LocalBelowAutogradGuard guard;
    const auto g = gate.unpack(), u = up.unpack();
    auto d_gate = at::empty_like(g), d_up = at::empty_like(u);
    if (g.numel() > 0) kernels.backward(grads[0].contiguous(), g, u, d_gate, d_up);
    return {d_gate, d_up};
  }
  void release_variables() override {
    gate.reset_data();
    up.reset_data();
  }
  std::string name() const override { return "SwigluBackward"; }
  SavedVariable gate, up;
  const SwigluKernels& kernels;
};

}  // namespace

void register_swiglu_kernels(c10::DeviceType device, const SwigluKernels& kernels) {
  registered()[static_cast<std::size_t>(device)] = kernels;
}

const SwigluKernels& swiglu_cpu_loops() { return kLoops; }

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  const auto* kernels = kernels_for(gate, up);
  if (kernels == nullptr) return at::silu(gate) * up;
  const auto g = gate.contiguous(), u = up.contiguous();
  at::Tensor result;
  {
    const LocalBelowAutogradGuard guard;
    result = at::empty_like(g);
    if (g.numel() > 0) kernels->forward(g, u, result);
  }
  if (!needs_graph(g, u)) return result;
  return with_node(result, make_node<SwigluBackward>(g, u, *kernels), g, u);
}

}  // namespace dtensor::moe
