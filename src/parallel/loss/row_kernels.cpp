// Calls of the operators, and their compositions for devices without kernels.
#include "parallel/loss/row_kernels.h"

#include "internal/kernels/gpu_kernels.h"
#include "internal/library_operator.h"

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

}  // namespace

void largest_of_aten(const Rows& rows, const at::Tensor& top) {
  if (rows.classes > 0) {
    top.copy_(own_values(rows).amax(1));
  } else {
    top.fill_(lowest<double>());
  }
}

void sums_of_aten(const Rows& rows, const at::Tensor& top, bool finds_top, const at::Tensor& sums) {
  if (finds_top) largest_of_aten(rows, top);
  const auto shifted = own_values(rows) - top.unsqueeze(1);
  const auto target = local_target(rows);
  sums[kExponentials].copy_(shifted.exp().sum(1));
  if (rows.smooths) sums[kSmoothing].copy_(rows.weight.defined() ? shifted.mv(rows.weight) : shifted.sum(1));
  if (rows.classes == 0) return;
  sums[kTarget].copy_(shifted.gather(1, target.index.unsqueeze(1)).squeeze(1).masked_fill_(target.elsewhere, 0));
  sums[kTargetWeight].copy_(rows.weight.defined() ? rows.weight.index_select(0, target.index) : at::ones_like(top));
  sums[kTargetWeight].masked_fill_(target.elsewhere, 0);
}

void gradient_of_aten(const Rows& rows, const at::Tensor& factors, const at::Tensor& out) {
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

namespace {

// Memory for the results is all that a meta kernel gives.
void no_largest(const Rows&, const at::Tensor&) {}
void no_sums(const Rows&, const at::Tensor&, bool, const at::Tensor&) {}
void no_gradient(const Rows&, const at::Tensor&, const at::Tensor&) {}

using Optional = std::optional<at::Tensor>;
using Int = std::int64_t;

Optional optional(const at::Tensor& t) { return t.defined() ? Optional(t) : std::nullopt; }

using Sums = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const Optional&, const Optional&,
                                                Int, Int, Int, Int, bool);

const c10::TypedOperatorHandle<Sums>& sums_operator() {
  static const auto op = library_operator<Sums>("dtensor::cross_entropy_sums");
  return op;
}

}  // namespace

TORCH_LIBRARY_IMPL(dtensor, CompositeExplicitAutograd, m) {
  register_kernels<largest_of_aten, sums_of_aten, gradient_of_aten>(m);
}
TORCH_LIBRARY_IMPL(dtensor, CPU, m) { register_kernels<largest_loop, sums_loop, gradient_loop>(m); }
TORCH_LIBRARY_IMPL(dtensor, Meta, m) { register_kernels<no_largest, no_sums, no_gradient>(m); }

bool checks_targets_on_device(const at::Tensor& values) {
  const auto device = values.device();
  return !device.is_cpu() && takes_gpu_kernel(GpuKernel::loss, device.type()) &&
         sums_operator().hasKernelForDispatchKey(c10::computeDispatchKey(std::nullopt, std::nullopt, device));
}

at::Tensor largest(const Rows& rows) {
  static const auto op = library_operator<at::Tensor(const at::Tensor&, Int)>("dtensor::cross_entropy_largest");
  return op.call(rows.values, rows.classes);
}

std::pair<at::Tensor, at::Tensor> sums(const Rows& rows, at::Tensor top) {
  auto [found, sums] = sums_operator().call(rows.values, rows.targets, optional(rows.weight), optional(top), rows.first,
                                            rows.classes, rows.count, rows.ignore_index, rows.smooths);
  return {top.defined() ? std::move(top) : std::move(found), std::move(sums)};
}

void gradient(const Rows& rows, const at::Tensor& factors, const at::Tensor& out) {
  static const auto op = library_operator<void(const at::Tensor&, const at::Tensor&, const Optional&, const at::Tensor&,
                                               Int, Int, Int, Int, at::Tensor&)>("dtensor::cross_entropy_gradient");
  at::Tensor written = out;
  op.call(rows.values, rows.targets, optional(rows.weight), factors, rows.first, rows.classes, rows.count,
          rows.ignore_index, written);
}

}  // namespace dtensor::loss_rows
