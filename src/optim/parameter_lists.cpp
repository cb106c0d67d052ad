// Groups parameters into buckets.
#include "optim/parameter_lists.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <tuple>

#include "dtensor/tensor.h"

namespace dtensor::optim {

c10::Device device_of_data(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return tensor.device();
  const auto type = DTensor(tensor).mesh().device_type();
  return type == tensor.device().type() ? tensor.device() : c10::Device(type);
}

Placements without_storage(Placements placements) {
  for (Placement& p : placements) p = p.as_storage(false);
  return placements;
}

bool same_local_shards(const Placements& a, const Placements& b, at::IntArrayRef mesh_shape) {
  if (a == b) return true;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (mesh_shape[i] > 1 && a[i].as_storage(false) != b[i].as_storage(false)) return false;
  }
  return true;
}

namespace {

at::Tensor placed_like(at::Tensor gradient, const at::Tensor& parameter) {
  if (!is_dtensor(parameter)) return gradient;
  const DTensor p(parameter);
  if (!is_dtensor(gradient)) return distribute_tensor(gradient, p.mesh(), without_storage(p.placements()));
  const DTensor g(gradient);
  const DeviceMesh mesh = p.mesh();
  if (g.mesh() == mesh && same_local_shards(g.placements(), p.placements(), mesh.shape())) return gradient;
  return distribute_tensor(g, mesh, without_storage(p.placements()));
}

Bucket& bucket_of(std::vector<Bucket>& buckets, const detail::SlotOptimizer::Entry& entry) {
  for (Bucket& bucket : buckets) {
    const at::Tensor& first = bucket.parameters.front();
    if (bucket.group == entry.group && first.scalar_type() == entry.parameter.scalar_type() &&
        device_of_data(first) == device_of_data(entry.parameter)) {
      return bucket;
    }
  }
  buckets.emplace_back();
  buckets.back().group = entry.group;
  return buckets.back();
}

// Foreach kernels do not compare sizes and would access memory out of bounds.
void check_sizes(const char* what, const at::Tensor& tensor, const detail::SlotOptimizer::Entry& entry) {
  TORCH_CHECK(tensor.sizes() == entry.parameter.sizes(), "optimizer: the ", what, " of parameter ", entry.name,
              " has sizes ", tensor.sizes(), ", the parameter ", entry.parameter.sizes(),
              " (was it replaced after its gradient or the optimizer's state was created?)");
}

// Fused kernels iterate over the memory of all operands in the same order.
bool fits_fused(const at::Tensor& parameter) { return parameter.is_non_overlapping_and_dense(); }

at::Tensor laid_out_like(at::Tensor tensor, const at::Tensor& parameter) {
  return tensor.strides().equals(parameter.strides()) ? tensor
                                                      : at::empty_like(parameter, tensor.options()).copy_(tensor);
}

// Placements or strides of the parameter may have changed since its slots were created.
void redistribute_slots(detail::SlotOptimizer::Entry& entry, bool dense) {
  for (at::Tensor& slot : entry.slots) {
    if (!slot.defined()) continue;
    slot = placed_like(std::move(slot), entry.parameter);
    if (dense) slot = laid_out_like(std::move(slot), entry.parameter);
  }
}

// Sorts by key instead of first occurrence: ranks where some parameters have no gradient would have another order, but
// later communication runs bucket by bucket.
void sort_alike_on_all_ranks(std::vector<Bucket>& buckets) {
  const auto key = [](const Bucket& bucket) {
    const at::Tensor& first = bucket.parameters.front();
    const c10::Device device = device_of_data(first);
    return std::tuple(bucket.group, first.scalar_type(), device.type(), device.index());
  };
  std::sort(buckets.begin(), buckets.end(), [&](const Bucket& a, const Bucket& b) { return key(a) < key(b); });
}

}  // namespace

void check_entry(const detail::SlotOptimizer::Entry& entry) {
  const at::Tensor &parameter = entry.parameter, &gradient = parameter.grad();
  check_sizes("gradient", gradient, entry);
  TORCH_CHECK(is_dtensor(parameter) || !is_dtensor(gradient), "optimizer: a regular parameter of sizes ",
              parameter.sizes(), " has a DTensor gradient; distribute the parameter, too");
  for (const at::Tensor& slot : entry.slots) {
    if (slot.defined()) check_sizes("state", slot, entry);
  }
}

at::Tensor gradient_of(const detail::SlotOptimizer::Entry& entry) {
  at::Tensor gradient = placed_like(entry.parameter.grad(), entry.parameter);
  return gradient.scalar_type() == entry.dtype ? gradient : gradient.to(entry.dtype);
}

std::vector<at::Tensor> Bucket::slots(std::size_t index) const {
  std::vector<at::Tensor> result;
  result.reserve(entries.size());
  for (detail::SlotOptimizer::Entry* entry : entries) {
    at::Tensor& slot = entry->slots[index];
    if (!slot.defined()) slot = at::zeros_like(entry->parameter, entry->parameter.options().dtype(entry->dtype));
    result.push_back(slot);
  }
  return result;
}

std::vector<at::Tensor> Bucket::steps() const {
  std::vector<at::Tensor> result;
  result.reserve(entries.size());
  std::unordered_map<std::int64_t, at::Tensor> made;
  for (const detail::SlotOptimizer::Entry* entry : entries) {
    at::Tensor& number = made[entry->steps];
    if (!number.defined()) {  // Created on the device: the host would wait for a copy.
      const at::TensorOptions options(device_of_data(parameters.front()));
      number = at::scalar_tensor(static_cast<double>(entry->steps), options.dtype(at::kFloat));
    }
    result.push_back(number);
  }
  return result;
}

std::vector<Bucket> make_buckets(const std::vector<detail::SlotOptimizer::Entry*>& active, bool dense) {
  std::vector<Bucket> buckets;
  for (detail::SlotOptimizer::Entry* entry : active) {
    const at::Tensor& parameter = entry->parameter;
    at::Tensor gradient = gradient_of(*entry);
    if (dense) gradient = laid_out_like(std::move(gradient), parameter);
    redistribute_slots(*entry, dense);
    Bucket& bucket = bucket_of(buckets, *entry);
    bucket.entries.push_back(entry);
    bucket.parameters.push_back(parameter);
    bucket.gradients.push_back(std::move(gradient));
  }
  sort_alike_on_all_ranks(buckets);
  return buckets;
}

Calls make_calls(const std::vector<detail::SlotOptimizer::Entry*>& active,
                 const std::function<bool(std::size_t group)>& fused) {
  std::vector<detail::SlotOptimizer::Entry*> together, listed;
  for (detail::SlotOptimizer::Entry* entry : active) {
    (fused(entry->group) && fits_fused(entry->parameter) ? together : listed).push_back(entry);
  }
  return {make_buckets(together, true), make_buckets(listed, false)};
}

}  // namespace dtensor::optim
