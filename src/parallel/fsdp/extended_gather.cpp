// Calls the extension of a parameter, and owns the memory of what it gathers.
#include "parallel/fsdp/extended_gather.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <algorithm>

#include "internal/aten_scopes.h"
#include "internal/memory_kind.h"
#include "internal/simulated.h"
#include "internal/wrapper_subclass.h"
#include "parallel/fsdp/emptied_storage.h"
#include "parallel/fsdp/schedule.h"

namespace dtensor::fsdp {
namespace {

// An extension runs as a program's function without gradients, also where the operator kernel gathers.
struct ExtensionScope : LocalNoGradGuard {
  EnableSubclassesGuard subclasses;
};

bool any_shares_storage(const std::vector<at::Tensor>& tensors, const at::Tensor& other) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& t) { return shares_storage(t, other); });
}

void fill_again(const at::Tensor& tensor) {
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  const auto size = static_cast<std::int64_t>(storage.nbytes());
  const auto fresh = at::empty({size}, at::TensorOptions(at::kByte).device(tensor.device()));
  fill_storage(storage, std::move(fresh.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
}

}  // namespace

void ExtendedGather::prepare(const std::string& name, const at::Tensor& local) {
  TORCH_CHECK_TYPE(extension.has_value(), "fully_shard: parameter '", name,
                   "' is a wrapper of other tensors; expected ",
                   "fsdp_pre_all_gather and fsdp_post_all_gather on it, got neither. Define both, shard the module ",
                   "before converting its parameters, or list the parameter in ignored_params");
  const ExtensionScope scope;
  const auto given = extension->contribute(local);
  std::vector<Layout> layouts;
  contributions_.clear();
  for (const at::Tensor& tensor : given) {
    contributions_.push_back(is_wrapper_subclass(tensor) ? copy_to_memory(tensor) : tensor.detach().contiguous());
    layouts.push_back({tensor.sizes().vec(), tensor.scalar_type()});
  }
  if (layouts_.empty()) layouts_ = layouts;
  TORCH_CHECK(!layouts.empty() && layouts == layouts_, "fully_shard: expected the extension of parameter '", name,
              "' to contribute tensors of the sizes and dtypes of its first gather, got ", given.size(),
              " tensors of other sizes or dtypes");
}

std::vector<std::vector<at::Tensor>> ExtendedGather::pieces(std::size_t ranks) {
  allocate(ranks);
  std::vector<std::vector<at::Tensor>> pieces(layouts_.size());
  for (std::size_t k = 0; k < layouts_.size(); ++k) {
    const auto& mine = contributions_[k];
    for (std::size_t r = 0; r < ranks; ++r) {
      pieces[k].push_back(view_of(gathered_[k], mine.scalar_type(), mine.sizes(), mine.strides(),
                                  static_cast<std::int64_t>(r) * mine.numel()));
    }
  }
  return pieces;
}

void ExtendedGather::allocate(std::size_t ranks) {
  const MemoryKindScope kind(MemoryKind::gathered);
  const NoMeshScopeGuard regular;
  if (std::exchange(empty_, false)) {
    std::for_each(gathered_.begin(), gathered_.end(), fill_again);
    std::for_each(made_.begin(), made_.end(), fill_again);
  }
  for (auto k = gathered_.size(); k < layouts_.size(); ++k) {
    auto sizes = layouts_[k].sizes;
    if (sizes.empty()) sizes = {1};
    sizes[0] *= static_cast<std::int64_t>(ranks);
    gathered_.push_back(at::empty(sizes, contributions_[k].options()));
  }
}

// Those that are no views of other memory. A hook may list what it did not make, such as the shard itself.
std::vector<at::Tensor> ExtendedGather::with_own_memory(const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> own;
  for (const at::Tensor& tensor : tensors) {
    if (is_wrapper_subclass(tensor) || !tensor.has_storage()) continue;
    if (any_shares_storage(gathered_, tensor) || any_shares_storage(own, tensor)) continue;
    if (!any_shares_storage(contributions_, tensor)) own.push_back(tensor);
  }
  return own;
}

void ExtendedGather::finish(at::ScalarType dtype) {
  if (contributions_.empty()) return;
  const ExtensionScope scope;
  if (unsharded_.defined()) {
    extension->refill(gathered_, dtype, unsharded_);
  } else {
    auto [tensor, made] = extension->unshard(gathered_, dtype);
    made_ = with_own_memory(made);
    unsharded_ = std::move(tensor);
  }
  contributions_.clear();
}

at::Tensor ExtendedGather::unsharded(at::IntArrayRef sizes) const {
  const ExtensionScope scope;
  if (unsharded_.sizes() == sizes) return unsharded_.detach();
  return unsharded_.as_strided(sizes, c10::contiguous_strides(sizes));
}

std::int64_t ExtendedGather::bytes(std::size_t ranks) const {
  std::int64_t bytes = 0;
  for (const auto& layout : layouts_)
    bytes += c10::multiply_integers(layout.sizes) * static_cast<std::int64_t>(ranks * c10::elementSize(layout.dtype));
  return bytes;
}

bool ExtendedGather::shares_memory(const at::Tensor& tensor) const {
  return any_shares_storage(gathered_, tensor) || any_shares_storage(made_, tensor);
}

void ExtendedGather::empty() {
  if (std::exchange(empty_, true)) return;
  for (const auto* tensors : {&gathered_, &made_}) {
    for (const at::Tensor& tensor : *tensors) empty_storage(*tensor.storage().unsafeGetStorageImpl(), true);
  }
}

void ExtendedGather::forget() {
  contributions_.clear();
  gathered_.clear();
  made_.clear();
  unsharded_.reset();
  empty_ = false;
}

void Parameter::forget_gathered() {
  full.reset();
  pieces.clear();
  if (extended) extended->forget();
}

}  // namespace dtensor::fsdp

namespace dtensor {

bool FsdpUnit::Impl::gathers() const {
  return flat_bytes > 0 || std::any_of(parameters.begin(), parameters.end(), [](const auto& p) { return p.extended; });
}

std::int64_t FsdpUnit::Impl::gathered_bytes() const {
  auto bytes = flat_bytes;
  for (const auto& p : parameters) {
    if (p.extended) bytes += p.extended->bytes(static_cast<std::size_t>(all_gather_comm.size()));
  }
  return bytes;
}

bool FsdpUnit::Impl::shares_gathered_memory(const at::Tensor& tensor) const {
  if (!is_gathered()) return false;
  const auto shares = [&](const fsdp::Parameter& p) { return p.extended && p.extended->shares_memory(tensor); };
  return shares_storage(tensor, flat) || std::any_of(parameters.begin(), parameters.end(), shares);
}

void FsdpUnit::Impl::prepare_gather() {
  const at::NoGradGuard no_grad;
  for (auto& p : parameters) {
    const auto tensor = p.extended ? p.lock() : at::Tensor();
    if (!tensor.defined()) continue;
    if (!p.has_original_layout(DTensor(tensor))) {
      p.extended->forget();
    } else {
      p.check_initialized(DTensor(tensor));
      p.extended->prepare(p.name, DTensor(tensor).to_local());
    }
  }
}

void FsdpUnit::Impl::set_extension(std::size_t k, GatherExtension extension) {
  auto& p = parameters[k];
  TORCH_CHECK_NOT_IMPLEMENTED(!is_offloaded() && !has_post_forward_mesh(), "fully_shard: parameter '", p.name,
                              "' has fsdp_pre_all_gather; expected no CPU offloading and reshard_after_forward = True ",
                              "or False");
  TORCH_CHECK_NOT_IMPLEMENTED(!p.sizes.empty() && p.layout.dim == 0, "fully_shard: parameter '", p.name,
                              "' has fsdp_pre_all_gather; expected a tensor that is sharded along dimension 0, got ",
                              p.sizes.size(), " dimensions, sharded along ", p.layout.dim);
  schedule->force_reshard(*this);
  freed_buffer.reset();
  for (auto& other : parameters) other.forget_gathered();
  if (!p.extended) p.extended = std::make_shared<fsdp::ExtendedGather>();
  p.in_flat_buffer = false;
  place_in_flat();
  p.extended->extension = std::move(extension);
}

void set_gather_extension(const at::Tensor& parameter, GatherExtension extension) {
  std::size_t k = 0;
  auto* unit = fsdp::unit_of(parameter, k);
  TORCH_CHECK(unit != nullptr, "set_gather_extension: expected a parameter of a unit of fully_shard");
  if (unit->mesh.is_member()) unit->set_extension(k, std::move(extension));
}

}  // namespace dtensor
