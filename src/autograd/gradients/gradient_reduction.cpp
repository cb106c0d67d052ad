// Groups gradients into collectives, and accumulates what these reduced.
#include "internal/gradient_reduction.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "internal/aten_scopes.h"
#include "internal/host_work.h"

namespace dtensor {

UnsynchronizedGradient::UnsynchronizedGradient(const DTensor& leaf)
    : leaf_(leaf), sum_(std::exchange(leaf.mutable_grad(), at::Tensor())) {}

UnsynchronizedGradient::~UnsynchronizedGradient() {
  if (sum_.defined() && !leaf_.grad().defined()) leaf_.mutable_grad() = std::move(sum_);
}

at::Tensor in_dtype(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

GradientReduction::Collective& GradientReduction::add(UnreducedGradient& gradient, const Communicator& comm,
                                                      at::ScalarType dtype, ReduceOp op) {
  auto found = std::find_if(collectives.begin(), collectives.end(),
                            [&](const Collective& c) { return c.comm == comm && c.dtype == dtype && c.op == op; });
  if (found == collectives.end()) found = collectives.insert(found, Collective{comm, dtype, op});
  found->gradients.push_back(&gradient);
  return *found;
}

void GradientReduction::add_sum(UnreducedGradient& gradient, at::IntArrayRef axes, const Communicator& comm,
                                at::ScalarType dtype) {
  const auto op = gradient.placements[static_cast<std::size_t>(axes[0])].reduce_op();
  gradient.local = in_dtype(gradient.local, dtype);
  for (const auto axis : axes) gradient.placements[static_cast<std::size_t>(axis)] = Replicate();
  add(gradient, comm, dtype, op).outputs.push_back(gradient.local);
}

int GradientReduction::start_sums() {
  const LocalBelowAutogradGuard scope;
  int started = 0;
  for (auto& sum : collectives) {
    if (sum.comm.size() == 1) continue;
    sum.work = sum.comm.all_reduce_list(sum.outputs, sum.op);
    ++started;
  }
  return started;
}

bool GradientReduction::in_background() const {
  return std::any_of(collectives.begin(), collectives.end(), [](const auto& c) { return c.comm.asynchronous(); });
}

void GradientReduction::wait() {
  for (auto& c : collectives) {
    c.work.wait();
    for (std::size_t k = 0; k < c.gradients.size(); ++k) c.gradients[k]->local = c.outputs[k];
  }
  collectives.clear();
}

void GradientReduction::finish() {
  const NamedCallScope named(name);
  wait();
  for (auto& gradient : gradients) {
    gradient.earlier.done();
    auto local = in_dtype(std::exchange(gradient.local, at::Tensor()), gradient.leaf.scalar_type());
    if (is_offloaded(gradient.leaf.mesh())) local = copy_to_host(local);
    accumulate_gradient(gradient.leaf, std::move(local), gradient.placements);
  }
}

void GradientReduction::discard() {
  for (auto& gradient : gradients) gradient.earlier.done();
  for (auto& c : collectives) c.work.wait();
}

}  // namespace dtensor
