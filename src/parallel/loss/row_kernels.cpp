// Kernels by device. Devices without kernels run ATen operators; a dry run computes no values.
#include "parallel/loss/row_kernels.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <array>

#include "internal/kernels/gpu_kernels.h"
#include "internal/simulated.h"

namespace dtensor::loss_rows {
namespace {

at::Tensor own_values(const Rows& rows) {
  return rows.values.narrow(1, 0, rows.classes).to(at::toOpMathType(rows.values.scalar_type()));
}

struct Local {
  at::Tensor index, elsewhere;
};

Local local_target(const Rows& rows) {
  const auto index = rows.targets - rows.first;
  const auto elsewhere = index.lt(0).logical_or_(index.ge(rows.classes));
  return {index.masked_fill(elsewhere, 0), elsewhere};
}

void sums_with_aten(const Rows& rows, const at::Tensor& top, const at::Tensor& sums) {
  const auto shifted = own_values(rows) - top.unsqueeze(1);
  const auto target = local_target(rows);
  sums[kExponentials].copy_(shifted.exp().sum(1));
  if (rows.smooths) sums[kSmoothing].copy_(rows.weight.defined() ? shifted.mv(rows.weight) : shifted.sum(1));
  if (rows.classes == 0) return;
  sums[kTarget].copy_(shifted.gather(1, target.index.unsqueeze(1)).squeeze(1).masked_fill_(target.elsewhere, 0));
  sums[kTargetWeight].copy_(rows.weight.defined() ? rows.weight.index_select(0, target.index) : at::ones_like(top));
  sums[kTargetWeight].masked_fill_(target.elsewhere, 0);
}

void gradient_with_aten(const Rows& rows, const at::Tensor& factors, const at::Tensor& out) {
  const auto column = [&](Factor f) { return factors[f].unsqueeze(1); };
  auto grad = (own_values(rows) - column(kLogSum)).exp_().mul_(column(kSoftmax));
  grad.sub_(rows.weight.defined() ? column(kSmooth) * rows.weight : column(kSmooth));
  const auto target = local_target(rows);
  if (rows.classes > 0) {
    grad.scatter_add_(1, target.index.unsqueeze(1), column(kPeak).neg().masked_fill_(target.elsewhere.unsqueeze(1), 0));
  }
  out.narrow(1, 0, rows.classes).copy_(grad);
  out.narrow(1, rows.classes, out.size(1) - rows.classes).zero_();
}

void largest_with_aten(const Rows& rows, const at::Tensor& top) {
  if (rows.classes > 0) {
    top.copy_(own_values(rows).amax(1));
  } else {
    top.fill_(lowest<double>());
  }
}

constexpr LossKernels kAten{largest_with_aten,
                            [](const Rows& rows, const at::Tensor& top, bool finds_top, const at::Tensor& sums) {
                              if (finds_top) largest_with_aten(rows, top);
                              sums_with_aten(rows, top, sums);
                            },
                            gradient_with_aten};

constexpr LossKernels kSimulated{
    [](const Rows&, const at::Tensor& top) { forget_values(top); },
    [](const Rows&, const at::Tensor& top, bool, const at::Tensor& sums) { forget_values(top), forget_values(sums); },
    [](const Rows&, const at::Tensor&, const at::Tensor& out) { forget_values(out); }};

// Written while libraries are loaded, read-only afterwards.
std::array<LossKernels, c10::COMPILE_TIME_MAX_DEVICE_TYPES>& registered_kernels() {
  static std::array<LossKernels, c10::COMPILE_TIME_MAX_DEVICE_TYPES> kernels;
  return kernels;
}

// Null if none are registered, or if they are disabled.
const LossKernels* registered_for(const at::Tensor& values) {
  const auto device = values.device().type();
  const auto& kernels = registered_kernels()[static_cast<std::size_t>(device)];
  return kernels.sums != nullptr && takes_gpu_kernel(GpuKernel::loss, device) ? &kernels : nullptr;
}

const LossKernels& kernels_of(const at::Tensor& values) {
  if (is_simulated(values)) return kSimulated;
  if (values.is_cpu()) return cpu_loops();
  const auto* registered = registered_for(values);
  return registered != nullptr ? *registered : kAten;
}

at::TensorOptions sum_options(const Rows& rows) {
  return rows.values.options().dtype(at::toOpMathType(rows.values.scalar_type()));
}

}  // namespace

void register_loss_kernels(c10::DeviceType device, const LossKernels& kernels) {
  registered_kernels()[static_cast<std::size_t>(device)] = kernels;
}

bool checks_targets_on_device(const at::Tensor& values) { return registered_for(values) != nullptr; }

at::Tensor largest(const Rows& rows) {
  auto top = at::empty({rows.values.size(0)}, sum_options(rows));
  kernels_of(rows.values).largest(rows, top);
  return top;
}

std::pair<at::Tensor, at::Tensor> sums(const Rows& rows, at::Tensor top) {
  const bool finds_top = !top.defined();
  if (finds_top) top = at::empty({rows.values.size(0)}, sum_options(rows));
  auto sums = at::zeros({kSums, rows.values.size(0)}, sum_options(rows));
  kernels_of(rows.values).sums(rows, top, finds_top, sums);
  return {top, sums};
}

void gradient(const Rows& rows, const at::Tensor& factors, const at::Tensor& out) {
  kernels_of(rows.values).gradient(rows, factors, out);
}

}  // namespace dtensor::loss_rows
