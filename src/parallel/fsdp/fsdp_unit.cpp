// Getters and setters of FsdpUnit, and the prediction of a step's memory.
#include <ATen/ATen.h>

#include <algorithm>

#include "parallel/fsdp/schedule.h"
#include "parallel/fsdp/unit.h"

namespace dtensor {

FsdpUnit::Impl& FsdpUnit::impl() const {
  TORCH_CHECK(impl_ != nullptr, "FsdpUnit: expected a unit, got one that was moved from");
  return *impl_;
}

std::vector<std::string> FsdpUnit::names() const {
  std::vector<std::string> names;
  for (const auto& p : impl().parameters) names.push_back(p.name);
  return names;
}

const FsdpOptions& FsdpUnit::options() const { return impl().options; }
std::int64_t FsdpUnit::gathered_bytes() const { return impl().gathered_bytes(); }
void FsdpUnit::unshard() const { impl().schedule->pin(impl()); }
void FsdpUnit::reshard() const { impl().schedule->unpin(impl()); }
FsdpStats FsdpUnit::stats() const { return impl().schedule->stats; }

void FsdpUnit::reset_peaks() const {
  auto& stats = impl().schedule->stats;
  stats.peak_gathered_bytes = stats.gathered_bytes;
  stats.peak_unreduced_bytes = stats.unreduced_bytes;
}

void FsdpUnit::set_requires_gradient_sync(bool on) const {
  impl().requires_gradient_sync = on;
  for (const auto& p : impl().parameters) {
    if (const auto tensor = p.lock(); tensor.defined()) set_gradient_sync(DTensor(tensor), on);
  }
}

void FsdpUnit::set_requires_all_reduce(bool on) const { impl().requires_all_reduce = on; }
void FsdpUnit::set_reshard_after_forward(bool on) const { impl().reshards = on; }
void FsdpUnit::set_reshard_after_backward(bool on) const { impl().reshards_after_backward = on; }

at::Tensor FsdpUnit::Impl::unreduced_gradient(const fsdp::Parameter& p) const {
  const auto tensor = p.lock();
  if (!tensor.defined() || !is_dtensor(tensor.grad())) return {};
  const auto placements = DTensor(tensor.grad()).placements();
  const auto partial = [&](std::int64_t axis) { return placements[static_cast<std::size_t>(axis)].is_partial(); };
  const bool over_replicas = axes.replicate >= 0 && partial(axes.replicate);
  const bool over_shards = std::any_of(axes.shard.begin(), axes.shard.end(), partial);
  return over_replicas || over_shards ? tensor.grad() : at::Tensor();
}

// Unreduced gradients are sums of contributions with the former factor.
void FsdpUnit::set_gradient_divide_factor(double factor) const {
  TORCH_CHECK(factor > 0, "fully_shard: expected a gradient divide factor > 0, got ", factor);
  auto& unit = impl();
  const at::NoGradGuard no_grad;
  const auto former = unit.divide_factor.value_or(static_cast<double>(unit.data_parallel_ranks()));
  const bool local = std::none_of(unit.parameters.begin(), unit.parameters.end(),
                                  [](const auto& p) { return p.used_globally || p.has_global_parts; });
  for (const auto& p : unit.parameters) {
    const auto gradient = unit.unreduced_gradient(p);
    if (!gradient.defined() || unit.divide_factor == factor) continue;
    TORCH_CHECK(local || factor == former, "fully_shard: expected gradients of calls with regular tensors only when ",
                "the divide factor changes from ", former, " to ", factor,
                ", but the unreduced gradient of parameter '", p.name,
                "' may have parts of calls with DTensors; set the factor before the first backward pass");
    const DTensor sum = fsdp::as_sums(DTensor(gradient));
    // No operator of the mesh, since other ranks may have no such gradient.
    const at::Tensor scaled = sum.to_local().mul(former / factor);
    p.lock().mutable_grad() = DTensor::from_local(scaled, sum.mesh(), sum.placements(), sum.sizes(), sum.strides());
  }
  unit.divide_factor = factor;
}

void FsdpUnit::set_reduce_scatter_unused_params(bool on) const { impl().reduces_unused = on; }

std::int64_t FsdpUnit::shard_bytes() const {
  std::int64_t bytes = 0;
  if (!impl().mesh.is_member()) return 0;
  for (const auto& p : impl().parameters) bytes += fsdp::local_bytes(p.lock());
  return bytes;
}

std::int64_t FsdpUnit::gradient_bytes() const {
  std::int64_t bytes = 0;
  if (!impl().mesh.is_member()) return 0;
  if (impl().mesh.size() == 1 && !impl().is_offloaded()) return 0;  // no gradient is a sum over ranks
  for (const auto& p : impl().parameters) {
    const auto element = static_cast<std::int64_t>(c10::elementSize(p.dtype));
    bytes += p.sharded ? p.layout.numel() * element : fsdp::local_bytes(p.lock());
  }
  return bytes;
}

std::int64_t FsdpUnit::kept_shard_bytes() const { return impl().post_forward_shard_bytes(); }

}  // namespace dtensor
