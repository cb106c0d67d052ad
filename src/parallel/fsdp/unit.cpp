// Gathers a unit by one collective into one flat buffer; the gathered parameters are views of it.
#include "parallel/fsdp/unit.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>

#include "dtensor/events.h"
#include "internal/memory_kind.h"
#include "internal/ranks/next_number.h"
#include "internal/ranks/separate_communicator.h"
#include "parallel/fsdp/emptied_storage.h"
#include "parallel/fsdp/extended_gather.h"
#include "parallel/fsdp/schedule.h"

namespace dtensor {
namespace {

using fsdp::empty_storage;
using fsdp::fill_storage;
using fsdp::Parameter;

constexpr std::int64_t kAlignment = 64;  // bytes; alignment of parameters in the flat buffer
constexpr int kMostKeptPieces = 256;     // of a parameter between gathers

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

at::Tensor local_of(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  return DTensor(parameter).to_local();
}

// Collectives of one communicator run in order. In the background, gathers run beside reductions, and both beside the
// collectives of the model.
Communicator separate_in_background(const DeviceMesh& mesh, const Communicator& comm, const std::string& purpose) {
  return comm.asynchronous() ? separate_communicator(mesh, comm.ranks(), comm.label(), purpose) : comm;
}

}  // namespace

at::Tensor fsdp::Parameter::lock() const { return at::Tensor(tensor.lock()); }

void fsdp::Parameter::throw_uninitialized(const DTensor& parameter) {
  TORCH_CHECK(parameter.generation() != *uninitialized_generation, "fully_shard: parameter '", name,
              "' was created on the meta device and is used before it was initialized. Initialize it first: "
              "nn::Module::reset(), ",
              "reset_parameters() of its module, or a checkpoint");
  uninitialized_generation.reset();
}

// The result is kept per generation, because a parameter is used several times in each.
bool fsdp::Parameter::has_original_layout(const DTensor& parameter) {
  const auto current = parameter.generation();
  if (std::exchange(compared_generation_, current) != current) {
    has_original_layout_ = parameter.placements() == sharded_placements &&
                           parameter.sizes() == at::IntArrayRef(sizes) &&
                           parameter.strides() == at::IntArrayRef(strides) && parameter.scalar_type() == dtype &&
                           parameter.mesh() == storage_mesh;
  }
  return has_original_layout_;
}

FsdpUnit::Impl::Impl(std::vector<Parameter> list, const DeviceMesh& on, const FsdpOptions& how, fsdp::Axes where)
    : mesh(on),
      storage_mesh(how.cpu_offload ? on.offloaded() : on),
      options(how),
      axes(where),
      parameters(std::move(list)) {
  const auto* keep_or_drop = std::get_if<bool>(&options.reshard_after_forward);
  reshards = keep_or_drop == nullptr || *keep_or_drop;
  place_in_flat();
  if (mesh.is_member()) make_communicators();
}

FsdpUnit::Impl::~Impl() {
  if (schedule) schedule->leave(*this);
}

void FsdpUnit::Impl::place_in_flat() {
  flat_bytes = 0;
  for (auto& p : parameters) {
    if (!p.in_flat_buffer) continue;
    const auto element = static_cast<std::int64_t>(c10::elementSize(p.gather_dtype()));
    p.offset = flat_bytes / element;
    flat_bytes += aligned(p.layout.numel() * element);
  }
}

void FsdpUnit::Impl::make_communicators() {
  const Communicator shard_comm = mesh.communicator(axes.shard);
  all_gather_comm = separate_in_background(mesh, shard_comm, "all_gather");
  reduce_scatter_comm = separate_in_background(mesh, shard_comm, "reduce_scatter");
  for (auto& p : parameters) {
    if (p.sharded) p.shard = p.layout.shard_layout(static_cast<std::size_t>(reduce_scatter_comm.rank()));
  }
  const auto* group = std::get_if<std::int64_t>(&options.reshard_after_forward);
  if (group != nullptr) {
    reshards = *group > 1;
    TORCH_CHECK(*group >= 1 && all_gather_comm.size() % *group == 0,
                "fully_shard: expected reshard_after_forward to divide the ", all_gather_comm.size(),
                " ranks of the shard axes, got ", *group);
    const int first = all_gather_comm.rank() / static_cast<int>(*group) * static_cast<int>(*group);
    if (*group < all_gather_comm.size()) {
      for (int i = 0; i < *group; ++i) post_forward_ranks.push_back(first + i);
    }
  }
  if (has_post_forward_mesh()) {
    std::vector<std::int64_t> members;
    for (const auto i : post_forward_ranks) members.push_back(shard_comm.ranks()[static_cast<std::size_t>(i)]);
    post_forward_comm = separate_communicator(mesh, members, shard_comm.label(), "post_forward");
  }
  if (axes.replicate >= 0)
    all_reduce_comm = separate_in_background(mesh, mesh.communicator(axes.replicate), "all_reduce");
  number = next_number(mesh, "fully_shard");
  gather_ = NamedCallScope::name("the gather of " + str());
}

std::string FsdpUnit::Impl::str() const {
  const auto more = parameters.size() < 2 ? "" : " and " + std::to_string(parameters.size() - 1) + " more";
  return "unit " + std::to_string(number) + " of fully_shard (" +
         (parameters.empty() ? "empty" : "'" + parameters[0].name + "'" + more) + ")";
}

const NamedCallScope::Name& FsdpUnit::Impl::name_reduction(const std::vector<const fsdp::Parameter*>& reduced) {
  if (last_reduction_ && last_reduced_ == reduced) return last_reduction_;
  std::vector<std::string> missing;
  for (const auto& p : parameters) {
    const auto tensor = p.lock();
    const bool trains = tensor.defined() && tensor.requires_grad();
    if (trains && std::find(reduced.begin(), reduced.end(), &p) == reduced.end()) missing.push_back("'" + p.name + "'");
  }
  const auto without = missing.empty() ? "" : " without " + c10::str(c10::Join(", ", missing));
  last_reduced_ = reduced;
  return last_reduction_ =
             NamedCallScope::name("the reduction of " + str() + without + " (see set_reduce_scatter_unused_params)");
}

bool FsdpUnit::Impl::is_fresh(const Parameter& p, const DTensor& parameter) const {
  return is_gathered() && p.generation == parameter.generation();
}

bool FsdpUnit::Impl::all_fresh() const {
  for (const auto& p : parameters) {
    if (!p.is_gathered()) continue;
    const auto tensor = p.lock();
    if (!tensor.defined() || p.generation != DTensor(tensor).generation()) return false;
  }
  return true;
}

std::vector<at::Tensor> FsdpUnit::Impl::local_parts() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  parts.reserve(parameters.size());
  for (const auto& p : parameters) {
    if (!p.in_flat_buffer) continue;
    if (const auto tensor = p.lock(); tensor.defined()) parts.push_back(DTensor(tensor).to_local());
  }
  return parts;
}

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
  const bool from_shares = post_forward_shard.defined() && all_fresh();
  allocate_flat_buffer();
  uses = 0;
  from_shares ? gather_post_forward_shards() : gather_shards();
  post_forward_shard.reset();
}

// From host memory, only this rank's shard is copied.
at::Tensor FsdpUnit::Impl::shard_on_device(const Parameter& p, const at::Tensor& tensor) const {
  auto local = local_of(tensor);
  if (is_offloaded()) local = local.to(flat.device(), /*non_blocking=*/true);
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

std::int64_t FsdpUnit::Impl::post_forward_shard_bytes() const {
  const auto count = static_cast<std::int64_t>(post_forward_ranks.size());
  return has_post_forward_mesh() ? aligned((flat_bytes + count - 1) / count) : 0;
}

std::vector<at::Tensor> FsdpUnit::Impl::post_forward_shards_of(const at::Tensor& bytes) const {
  const auto count = static_cast<std::int64_t>(post_forward_ranks.size()), each = post_forward_shard_bytes();
  std::vector<at::Tensor> shares;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto begin = std::min(i * each, flat_bytes);
    shares.push_back(fsdp::view_of(bytes, at::kByte, {std::min(each, flat_bytes - begin)}, {1}, begin));
  }
  return shares;
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
    abandon_gather();
    throw;
  }
  work = Work();
  inputs.clear();
  if (all_gather_comm.size() <= kMostKeptPieces) return;
  for (auto& p : parameters) p.pieces.clear();
}

void FsdpUnit::Impl::abandon_gather() {
  work = Work();
  inputs.clear();
  for (auto& p : parameters) p.forget_gathered();
  flat.reset();
  freed_buffer.reset();  // its views were reset: allocation may have failed
  prefetched = false;
}

void FsdpUnit::Impl::drop() {
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

void FsdpUnit::Impl::reshard_after_forward_to_mesh() {
  const at::AutoDispatchBelowADInplaceOrView below;
  finish_gather();  // unshard() may have started it
  {
    const auto mine = post_forward_shards_of(flat)[static_cast<std::size_t>(post_forward_comm.rank())];
    const MemoryKindScope gathered(MemoryKind::gathered);
    post_forward_shard = post_forward_comm.empty(mine.sizes(), mine.options());
    post_forward_shard.copy_(mine);
  }
  drop();
}

std::int64_t FsdpUnit::Impl::data_parallel_ranks() const {
  return fsdp::shard_ranks(mesh, axes) * (axes.replicate < 0 ? 1 : mesh.size(axes.replicate));
}

bool FsdpUnit::Impl::has_work() const { return data_parallel_ranks() > 1 || is_offloaded(); }

Placements FsdpUnit::Impl::contribution_placements(Placements placements) const {
  const Placement contribution = Partial(divide_factor ? ReduceOp::sum : ReduceOp::avg);
  for (const auto axis : axes.shard) placements[static_cast<std::size_t>(axis)] = contribution;
  if (axes.replicate >= 0) placements[static_cast<std::size_t>(axes.replicate)] = contribution;
  return placements;
}

bool FsdpUnit::Impl::frozen() const {
  for (const auto& p : parameters) {
    const auto tensor = p.lock();
    if (tensor.defined() && tensor.requires_grad()) return false;
  }
  return true;
}

bool FsdpUnit::Impl::all_used() const {
  for (const auto& p : parameters) {
    if (p.in_flat_buffer && !p.used) return false;
  }
  return true;
}

bool FsdpUnit::Impl::complete() const {
  bool any_fetched = false, any = false;
  for (const auto& p : parameters) {
    if (!p.is_gathered()) continue;
    any_fetched = true;
    if (p.gradient_expected && !p.pending_gradient.defined()) return false;
    any |= p.pending_gradient.defined();
  }
  if (any_fetched) return any;
  // Nothing is gathered, so only calls with local semantics record uses. Otherwise expects a gradient of every
  // parameter that can have one.
  const bool recorded_uses =
      std::any_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.gradient_expected; });
  return std::all_of(parameters.begin(), parameters.end(), [&](const Parameter& p) {
    const auto tensor = p.lock();
    const bool expected = recorded_uses ? p.gradient_expected : tensor.defined() && tensor.requires_grad();
    return !expected || p.pending_gradient.defined();
  });
}

}  // namespace dtensor
