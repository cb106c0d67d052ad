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
std::int64_t FsdpUnit::gathered_bytes() const { return impl().flat_bytes; }
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

void FsdpUnit::set_gradient_divide_factor(double factor) const {
  TORCH_CHECK(factor > 0, "fully_shard: expected a gradient divide factor > 0, got ", factor);
  impl().divide_factor = factor;
}

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
