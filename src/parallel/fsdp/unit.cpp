// A unit: the positions of its parameters in one flat buffer, its communicators, and its state.
#include "parallel/fsdp/unit.h"

#include <ATen/ATen.h>

#include "internal/ranks/next_number.h"
#include "internal/ranks/separate_communicator.h"
#include "parallel/fsdp/extended_gather.h"
#include "parallel/fsdp/schedule.h"

namespace dtensor {
namespace {

using fsdp::Parameter;

constexpr std::int64_t kAlignment = 64;  // bytes; alignment of parameters in the flat buffer

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

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
  const auto* enabled = std::get_if<bool>(&options.reshard_after_forward);
  reshards = enabled == nullptr || *enabled;
  place_in_flat();
  if (mesh.is_member()) make_communicators();
}

FsdpUnit::Impl::~Impl() {
  if (schedule) schedule->remove_unit(*this);
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

std::int64_t FsdpUnit::Impl::post_forward_shard_bytes() const {
  const auto count = static_cast<std::int64_t>(post_forward_ranks.size());
  return has_post_forward_mesh() ? aligned((flat_bytes + count - 1) / count) : 0;
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
