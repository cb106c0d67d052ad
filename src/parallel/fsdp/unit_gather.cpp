// Gathers a unit by one collective into one flat buffer; the gathered parameters are views of it.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>

#include "dtensor/events.h"
#include "internal/host_work.h"
#include "internal/memory_kind.h"
#include "parallel/fsdp/emptied_storage.h"
#include "parallel/fsdp/extended_gather.h"
#include "parallel/fsdp/unit.h"

namespace dtensor {
namespace {

using fsdp::empty_storage;
using fsdp::fill_storage;
using fsdp::Parameter;

constexpr int kMostKeptPieces = 256;  // of a parameter between gathers

at::Tensor local_of(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  return DTensor(parameter).to_local();
}

}  // namespace

void FsdpUnit::Impl::make_views() {
  for (auto& p : parameters) {
    p.pieces.clear();
    if (p.in_flat_buffer) p.full = fsdp::view_of(flat, p.gather_dtype(), p.layout.sizes, p.layout.strides, p.offset);
  }
}

// Creating a view costs as much as gathering a small parameter, and a unit has one per parameter and rank. They are
// created once; later copies replace the memory of their storage, if no other tensor refers to it. With thousands of
// ranks, the pieces of all units would take hundreds of megabytes, so each gather creates its own.
void FsdpUnit::Impl::allocate_flat_buffer() {
  const MemoryKindScope gathered(MemoryKind::gathered);
  auto fresh = all_gather_comm.empty({flat_bytes}, at::TensorOptions(at::kByte).device(mesh.device_type()));
  if (freed_buffer.defined()) {
    flat = std::exchange(freed_buffer, at::Tensor());
    fill_storage(*flat.storage().unsafeGetStorageImpl(),
                 std::move(fresh.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
  } else {
    flat = std::move(fresh);
    make_views();
  }
  for (auto& p : parameters) p.used = false;
}

// False if an operator's result is a view of a gathered parameter, whose lifetime the unit does not control.
bool FsdpUnit::Impl::holds_views_alone() const {
  std::size_t views = 1;  // flat itself
  const auto alone = [&](const at::Tensor& view) { return ++views, view.use_count() == 1; };
  for (const auto& p : parameters) {
    if (p.in_flat_buffer && !(alone(p.full) && std::all_of(p.pieces.begin(), p.pieces.end(), alone))) return false;
  }
  return flat.use_count() == 1 && flat.storage().use_count() == views;
}

// If every parameter is empty, zero bytes are gathered, which no rank waits for.
void FsdpUnit::Impl::start_gather() {
  const c10::InferenceMode off(false);  // the tensors are reused in training steps
  const at::AutoDispatchBelowADInplaceOrView below;
  const CollectiveTag tag([this] { return local_parts(); });
  const NamedCallScope named(gather_);
  const bool from_post_forward = post_forward_shard.defined() && all_fresh();
  allocate_flat_buffer();
  uses = 0;
  from_post_forward ? gather_post_forward_shards() : gather_shards();
  post_forward_shard.reset();
}

// From host memory, only this rank's shard is copied.
at::Tensor FsdpUnit::Impl::shard_on_device(const Parameter& p, const at::Tensor& tensor) const {
  auto local = local_of(tensor);
  if (is_offloaded()) local = copy_to_device(local, flat.device());
  return local.scalar_type() == p.gather_dtype() ? local : local.to(p.gather_dtype());
}

void FsdpUnit::Impl::gather_shards() {
  const auto ranks = static_cast<std::size_t>(all_gather_comm.size());
  std::vector<std::vector<at::Tensor>> gathered;  // by input and rank
  std::vector<at::Tensor> outputs;
  inputs.reserve(parameters.size());
  outputs.reserve(parameters.size() * ranks);
  for (auto& p : parameters) {
    if (!p.is_gathered()) continue;
    const auto tensor = p.lock();
    TORCH_CHECK(tensor.defined(), "fully_shard: parameter '", p.name,
                "' was freed, but others of its unit are used; keep all parameters of the model alive");
    p.generation = DTensor(tensor).generation();
    if (!p.has_original_layout(DTensor(tensor))) continue;
    if (p.extended) {
      for (auto& pieces : p.extended->pieces(ranks)) gathered.push_back(std::move(pieces));
      for (const auto& contribution : p.extended->contributions()) inputs.push_back(contribution);
      continue;
    }
    auto shard = shard_on_device(p, tensor);
    if (p.sharded) {
      for (std::size_t rank = p.pieces.size(); rank < p.layout.pieces.size(); ++rank)
        p.pieces.push_back(p.layout.shard_view(p.full, rank));
      inputs.push_back(std::move(shard));
      gathered.push_back(p.pieces);
    } else {
      p.full.copy_(shard);
    }
  }
  if (inputs.empty()) return;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (const auto& pieces : gathered) outputs.push_back(pieces[rank]);
  }
  work = all_gather_comm.all_gather_list(outputs, inputs);
}

std::vector<at::Tensor> FsdpUnit::Impl::post_forward_shards_of(const at::Tensor& bytes) const {
  const auto count = static_cast<std::int64_t>(post_forward_ranks.size()), each = post_forward_shard_bytes();
  std::vector<at::Tensor> shards;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto begin = std::min(i * each, flat_bytes);
    shards.push_back(fsdp::view_of(bytes, at::kByte, {std::min(each, flat_bytes - begin)}, {1}, begin));
  }
  return shards;
}

void FsdpUnit::Impl::gather_post_forward_shards() {
  inputs = {post_forward_shard};
  work = post_forward_comm.all_gather(post_forward_shards_of(flat), post_forward_shard);
}

void FsdpUnit::Impl::finish_gather() {
  if (inputs.empty()) return;
  try {
    work.wait();
    for (const auto& p : parameters) {
      if (p.extended) p.extended->finish(p.gather_dtype());
    }
  } catch (...) {
    reshard_after_failed_gather();
    throw;
  }
  work = Work();
  inputs.clear();
  if (all_gather_comm.size() <= kMostKeptPieces) return;
  for (auto& p : parameters) p.pieces.clear();
}

void FsdpUnit::Impl::reshard_after_failed_gather() {
  work = Work();
  inputs.clear();
  for (auto& p : parameters) p.forget_gathered();
  flat.reset();
  freed_buffer.reset();  // its views were reset: allocation may have failed
  prefetched = false;
}

void FsdpUnit::Impl::reshard() {
  finish_gather();
  if (flat.defined() && !aliased_by_output && (unsharded_in_module || holds_views_alone())) {
    empty_storage(*flat.storage().unsafeGetStorageImpl(), unsharded_in_module);
    freed_buffer = std::move(flat);
    for (auto& p : parameters) {
      if (p.extended) p.extended->empty();
    }
  } else if (flat.defined()) {
    for (auto& p : parameters) p.forget_gathered();
  }
  flat.reset();
  prefetched = aliased_by_output = false;
}

void FsdpUnit::Impl::reshard_to_post_forward_mesh() {
  const at::AutoDispatchBelowADInplaceOrView below;
  finish_gather();  // unshard() may have started it
  {
    const auto mine = post_forward_shards_of(flat)[static_cast<std::size_t>(post_forward_comm.rank())];
    const MemoryKindScope gathered(MemoryKind::gathered);
    post_forward_shard = post_forward_comm.empty(mine.sizes(), mine.options());
    post_forward_shard.copy_(mine);
  }
  reshard();
}

}  // namespace dtensor
