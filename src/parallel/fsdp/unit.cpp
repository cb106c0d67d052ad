// Gathering a unit: one collective into one flat buffer, of which the gathered parameters are views.
#include "parallel/fsdp/unit.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>

#include "dtensor/events.h"
#include "parallel/fsdp/schedule.h"

namespace dtensor {
namespace {

using fsdp::Parameter;

constexpr std::int64_t kAlignment = 64;  // bytes, of each parameter in the flat buffer

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

at::Tensor local_of(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  return DTensor(parameter).to_local();
}

// `lent`: graphs may refer to it. To read it is an error then, not a crash, in releases of LibTorch that can say so.
template <class Storage>
void empty_storage(Storage& storage, bool lent) {
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
  if (!lent) return;
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
        "fully_shard: a gathered parameter is used while its unit is resharded. Backward gathers a unit when it "
        "reaches "
        "the outputs of the unit's module: return what backward starts from (tensors in lists, dictionaries and data "
        "classes are found), or give the unit reshard_after_forward = false");
  }
}

template <class Storage>
void fill_storage(Storage& storage, c10::DataPtr memory) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) storage.clear_data_ptr_access_error_msg_();
  storage.set_data_ptr_noswap(std::move(memory));
}

// The same members, with an order of their own.
Communicator twin_of(const Communicator& comm) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  return comm.subgroup(all, comm.label());
}

}  // namespace

at::Tensor fsdp::Parameter::lock() const { return at::Tensor(tensor.lock()); }

void fsdp::Parameter::check_unfilled(const DTensor& parameter) {
  TORCH_CHECK(parameter.generation() != *unfilled, "fully_shard: parameter '", name,
              "' was made on the meta device and is used before it was filled. Fill it first: nn::Module::reset(), ",
              "reset_parameters() of its module, or a checkpoint");
  unfilled.reset();
}

// Compared once a generation: a parameter is used several times in each.
bool fsdp::Parameter::is_where_put(const DTensor& parameter) {
  const auto current = parameter.generation();
  if (std::exchange(compared_, current) != current) {
    where_put_ = parameter.placements() == own && parameter.sizes() == at::IntArrayRef(sizes) &&
                 parameter.strides() == at::IntArrayRef(strides) && parameter.scalar_type() == dtype &&
                 parameter.mesh() == home;
  }
  return where_put_;
}

FsdpUnit::Impl::Impl(std::vector<Parameter> list, const DeviceMesh& on, const FsdpOptions& how, fsdp::Axes where)
    : mesh(on), home(how.cpu_offload ? on.offloaded() : on), options(how), axes(where), parameters(std::move(list)) {
  const auto* keep_or_drop = std::get_if<bool>(&options.reshard_after_forward);
  reshards = keep_or_drop == nullptr || *keep_or_drop;
  place_in_flat();
  if (mesh.is_member()) make_communicators();
}

FsdpUnit::Impl::~Impl() {
  if (schedule) schedule->leave(*this);
}

void FsdpUnit::Impl::place_in_flat() {
  for (auto& p : parameters) {
    if (!p.fetched) continue;
    const auto element = static_cast<std::int64_t>(c10::elementSize(p.gather_dtype()));
    p.offset = flat_bytes / element;
    flat_bytes += aligned(p.layout.numel() * element);
  }
}

void FsdpUnit::Impl::make_communicators() {
  gathers = reduces = mesh.communicator(axes.shard);
  for (auto& p : parameters) {
    if (p.sharded) p.shard = p.layout.of_rank(static_cast<std::size_t>(reduces.rank()));
  }
  const auto* group = std::get_if<std::int64_t>(&options.reshard_after_forward);
  if (group != nullptr) {
    reshards = *group > 1;
    TORCH_CHECK(*group >= 1 && gathers.size() % *group == 0, "fully_shard: reshard_after_forward = ", *group,
                " does not divide the ", gathers.size(), " ranks that parameters are split over");
    const int first = gathers.rank() / static_cast<int>(*group) * static_cast<int>(*group);
    if (*group < gathers.size()) {
      for (int i = 0; i < *group; ++i) neighbours.push_back(first + i);
    }
  }
  if (wants_shrinking()) {
    const std::vector<std::int64_t> members(neighbours.begin(), neighbours.end());
    neighbours_comm = gathers.subgroup(members, gathers.label());
  }
  if (axes.replicate >= 0) replicas = mesh.communicator(axes.replicate);
  if (!gathers.asynchronous()) return;
  // Collectives of one communicator run one after the other: gathers must not wait for reductions, nor must the model's
  // own collectives for the sums over replicas.
  gathers = twin_of(gathers);
  if (replicas) replicas = twin_of(replicas);
}

bool FsdpUnit::Impl::is_fresh(const Parameter& p, const DTensor& parameter) const {
  return is_gathered() && p.generation == parameter.generation();
}

bool FsdpUnit::Impl::all_fresh() const {
  for (const auto& p : parameters) {
    if (!p.fetched) continue;
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
    if (!p.fetched) continue;
    if (const auto tensor = p.lock(); tensor.defined()) parts.push_back(DTensor(tensor).to_local());
  }
  return parts;
}

void FsdpUnit::Impl::make_views() {
  for (auto& p : parameters) {
    if (!p.fetched) continue;
    p.full = fsdp::view_of(flat, p.gather_dtype(), p.layout.sizes, p.layout.strides, p.offset);
    p.pieces.clear();
    if (!p.sharded) continue;
    for (std::size_t rank = 0; rank < p.layout.pieces.size(); ++rank) p.pieces.push_back(p.layout.piece(p.full, rank));
  }
}

// A view costs as much as gathering a small parameter, and a unit has some for each parameter and rank: they are made
// once, and a storage that nobody else knows changes its memory.
void FsdpUnit::Impl::take_memory() {
  const c10::InferenceMode off(false);  // a later training step uses the same tensors
  auto fresh = gathers.empty({flat_bytes}, at::TensorOptions(at::kByte).device(mesh.device_type()));
  if (emptied.defined()) {
    flat = std::exchange(emptied, at::Tensor());
    fill_storage(*flat.storage().unsafeGetStorageImpl(), std::move(fresh.storage().mutable_data_ptr()));
  } else {
    flat = std::move(fresh);
    make_views();
  }
  for (auto& p : parameters) p.used = false;
}

// Not so where a result is a view of a gathered parameter, which lives as long as its holder wants.
bool FsdpUnit::Impl::holds_views_alone() const {
  std::size_t views = 1;  // flat itself
  const auto alone = [&](const at::Tensor& view) { return ++views, view.use_count() == 1; };
  for (const auto& p : parameters) {
    if (p.fetched && !(alone(p.full) && std::all_of(p.pieces.begin(), p.pieces.end(), alone))) return false;
  }
  return flat.use_count() == 1 && flat.storage().use_count() == views;
}

// Zero bytes are gathered too where every parameter is empty: nobody waits for anything.
void FsdpUnit::Impl::start_gather() {
  const at::AutoDispatchBelowADInplaceOrView below;
  const CollectivesOf of([this] { return local_parts(); });
  const bool from_shares = share.defined() && all_fresh();
  take_memory();
  uses = 0;
  from_shares ? gather_shares() : gather_shards();
  share.reset();
}

// Out of host memory, only this rank's shard is copied.
at::Tensor FsdpUnit::Impl::shard_on_device(const Parameter& p, const at::Tensor& tensor) const {
  auto local = local_of(tensor);
  if (is_offloaded()) local = local.to(flat.device(), /*non_blocking=*/true);
  return local.scalar_type() == p.gather_dtype() ? local : local.to(p.gather_dtype());
}

void FsdpUnit::Impl::gather_shards() {
  std::vector<const Parameter*> gathered;
  std::vector<at::Tensor> outputs;
  inputs.reserve(parameters.size());
  outputs.reserve(parameters.size() * static_cast<std::size_t>(gathers.size()));
  for (auto& p : parameters) {
    if (!p.fetched) continue;
    const auto tensor = p.lock();
    TORCH_CHECK(tensor.defined(), "fully_shard: parameter '", p.name, "' is gone, but others of its unit are used");
    p.generation = DTensor(tensor).generation();
    if (!p.is_where_put(DTensor(tensor))) continue;
    auto shard = shard_on_device(p, tensor);
    if (p.sharded) {
      inputs.push_back(std::move(shard));
      gathered.push_back(&p);
    } else {
      p.full.copy_(shard);
    }
  }
  if (inputs.empty()) return;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(gathers.size()); ++rank) {
    for (const auto* p : gathered) outputs.push_back(p->pieces[rank]);
  }
  work = gathers.all_gather_list(outputs, inputs);
}

std::int64_t FsdpUnit::Impl::share_bytes() const {
  const auto count = static_cast<std::int64_t>(neighbours.size());
  return wants_shrinking() ? aligned((flat_bytes + count - 1) / count) : 0;
}

std::vector<at::Tensor> FsdpUnit::Impl::shares_of(const at::Tensor& bytes) const {
  const auto count = static_cast<std::int64_t>(neighbours.size()), each = share_bytes();
  std::vector<at::Tensor> shares;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto begin = std::min(i * each, flat_bytes);
    shares.push_back(fsdp::view_of(bytes, at::kByte, {std::min(each, flat_bytes - begin)}, {1}, begin));
  }
  return shares;
}

void FsdpUnit::Impl::gather_shares() {
  inputs = {share};
  work = neighbours_comm.all_gather(shares_of(flat), share);
}

void FsdpUnit::Impl::finish_gather() {
  if (inputs.empty()) return;
  try {
    work.wait();
  } catch (...) {
    abandon_gather();
    throw;
  }
  work = Work();
  inputs.clear();
}

void FsdpUnit::Impl::abandon_gather() {
  work = Work();
  inputs.clear();
  for (auto& p : parameters) p.full.reset(), p.pieces.clear();
  flat.reset();
  emptied.reset();  // whose views these were: there may have been no memory to put into it
  prefetched = false;
}

void FsdpUnit::Impl::drop() {
  finish_gather();
  if (flat.defined() && !in_results && (lent || holds_views_alone())) {
    empty_storage(*flat.storage().unsafeGetStorageImpl(), lent);
    emptied = std::move(flat);
  } else if (flat.defined()) {
    for (auto& p : parameters) p.full.reset(), p.pieces.clear();
  }
  flat.reset();
  prefetched = in_results = false;
}

void FsdpUnit::Impl::shrink() {
  const at::AutoDispatchBelowADInplaceOrView below;
  finish_gather();  // unshard() may have left it under way
  {
    const auto mine = shares_of(flat)[static_cast<std::size_t>(neighbours_comm.rank())];
    share = neighbours_comm.empty(mine.sizes(), mine.options());
    share.copy_(mine);
  }
  drop();
}

bool FsdpUnit::Impl::has_work() const {
  const auto copies = axes.replicate < 0 ? 1 : mesh.size(axes.replicate);
  return fsdp::shard_ranks(mesh, axes) * copies > 1 || is_offloaded();
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
    if (p.fetched && !p.used) return false;
  }
  return true;
}

bool FsdpUnit::Impl::complete() const {
  bool any_fetched = false, any = false;
  for (const auto& p : parameters) {
    any_fetched |= p.fetched;
    if (p.fetched && p.expected && !p.pending.defined()) return false;
    any |= p.fetched && p.pending.defined();
  }
  if (any_fetched) return any;
  // Nothing is gathered, so nothing tells what was used: all that can have a gradient.
  for (const auto& p : parameters) {
    const auto tensor = p.lock();
    if (tensor.defined() && tensor.requires_grad() && !p.pending.defined()) return false;
  }
  return true;
}

}  // namespace dtensor
