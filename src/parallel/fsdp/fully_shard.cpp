// fully_shard: distributes parameters, creates a unit of those without one, and installs its schedule's hooks on them.
#include "dtensor/fully_shard.h"

#include <ATen/ATen.h>

#include <limits>
#include <map>

#include "dtensor/hooks.h"
#include "internal/aten_scopes.h"
#include "internal/gather_hook.h"
#include "internal/host_work.h"
#include "internal/memory_kind.h"
#include "internal/parameter_swap.h"
#include "internal/shard_segments.h"
#include "internal/wrapper_subclass.h"
#include "parallel/fsdp/extended_gather.h"
#include "parallel/fsdp/other_meshes.h"
#include "parallel/fsdp/schedule.h"

namespace dtensor {
namespace fsdp {
namespace {

// The gather hook of a parameter. Its type identifies the parameters of units.
struct UnitParameterHook : UnitParameter {
  at::Tensor operator()(const DTensor& parameter, const Placements& gathered, at::ScalarType dtype) const {
    return unit->schedule->use(*unit, k, parameter, gathered, dtype);
  }
};

const UnitParameter* member_of(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return nullptr;
  const auto* hook = gather_hook(DTensor(tensor));
  return hook == nullptr ? nullptr : hook->target<UnitParameterHook>();
}

// Axis names of a DTensor's mesh.
std::vector<std::string> axes_of(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? DTensor(tensor).mesh().names() : std::vector<std::string>();
}

// Of the axes of a parameter's original mesh, those over which the unit neither shards nor replicates.
TensorParallelAxes find_tp_axes(const Parameter& p, const DeviceMesh& mesh, const Axes& axes,
                                std::vector<std::string> names) {
  std::erase_if(names, [&](const std::string& name) {
    const auto axis = mesh.dim(name);
    return axes.splits(axis) || axis == axes.replicate;
  });
  if (names.empty()) return {};
  TensorParallelAxes tp_axes{mesh[names], {}};
  for (const auto& name : names)
    tp_axes.placements.push_back(p.unsharded_placements[static_cast<std::size_t>(mesh.dim(name))]);
  return tp_axes;
}

std::int64_t dim_to_shard(const std::string& name, const at::Tensor& tensor, const FsdpOptions& options) {
  if (tensor.dim() == 0) return -1;
  const auto dim = options.shard_dim ? options.shard_dim(name, tensor) : 0;
  TORCH_CHECK(dim >= -tensor.dim() && dim < tensor.dim(), "fully_shard: expected shard_dim in [", -tensor.dim(), ", ",
              tensor.dim(), ") for parameter '", name, "', got ", dim);
  return dim < 0 ? dim + tensor.dim() : dim;
}

// Placements with the shard axis changed to unsplit blocks if the options require them.
Placements keep_last_blocks(Placements placements, const std::string& name, const at::Tensor& tensor,
                            const DeviceMesh& mesh, const Axes& axes, const FsdpOptions& options) {
  Placement& shard = placements[static_cast<std::size_t>(axes.shard[0])];
  const std::int64_t block = options.shard_block ? options.shard_block(name, tensor) : 1;
  TORCH_CHECK(block >= 1, "fully_shard: expected shard_block >= 1 for parameter '", name, "', got ", block);
  if (block == 1 || !shard.is_shard()) return placements;
  const auto splits =
      std::count_if(placements.begin(), placements.end(), [&](const Placement& p) { return p.is_shard(shard.dim()); });
  TORCH_CHECK(splits == 1, "fully_shard: shard_block = ", block, " requires that no other axis splits dimension ",
              shard.dim(), " of parameter '", name, "', got ", to_string(placements));
  shard = BlockShard(shard.dim(), tensor.size(shard.dim()), block, mesh.size(axes.shard[0])).as_storage();
  return placements;
}

// Allocates the local tensor only. NaN makes missing initialization visible.
at::Tensor materialize(const at::Tensor& meta, const DeviceMesh& mesh, const Placements& placements) {
  const bool has_nan = at::isFloatingType(meta.scalar_type()) || at::isComplexType(meta.scalar_type());
  const double value = has_nan ? std::numeric_limits<double>::quiet_NaN() : 0;
  return full(meta.sizes(), value, mesh, placements, at::TensorOptions(meta.scalar_type()));
}

// The local tensor for from_local on a rank outside the mesh.
at::Tensor local_outside_mesh(const DTensor& tensor, at::DeviceType device) {
  const NoMeshScopeGuard regular;
  return at::empty(at::DimVector(tensor.dim(), 0), at::TensorOptions(tensor.scalar_type()).device(device));
}

// A copy in host memory, pinned for asynchronous copies to the device of `mesh`.
at::Tensor host_copy(const DeviceMesh& mesh, const at::Tensor& local) {
  return mesh.device_type() == c10::kCPU ? copy_to_host(local) : local.to(at::kCPU).pin_memory();
}

at::Tensor move_to_storage_mesh(const DeviceMesh& storage_mesh, const DeviceMesh& mesh, const DTensor& placed) {
  const at::Tensor local = storage_mesh.is_member() ? host_copy(mesh, placed.to_local())
                                                    : local_outside_mesh(placed, storage_mesh.device_type());
  return DTensor::from_local(local, storage_mesh, placed.placements(), placed.sizes(), placed.strides());
}

// This rank's slice of a parameter that is a wrapper of other tensors. Values are not compared between ranks. Operators
// do not gather it by themselves, so it is an ordinary shard.
at::Tensor place_wrapper(const std::string& name, const at::Tensor& wrapper, const DeviceMesh& mesh, const Axes& axes,
                         Placements placements) {
  for (auto& placement : placements) placement = placement.as_storage(false);
  const auto dim = placements[static_cast<std::size_t>(axes.shard[0])].dim();
  TORCH_CHECK_NOT_IMPLEMENTED(dim == 0 && wrapper.is_contiguous() && mesh.is_member(), "fully_shard: parameter '", name,
                              "' is a wrapper of other tensors; expected a contiguous one that is sharded along ",
                              "dimension 0 over a mesh with this rank, got strides ", wrapper.strides(),
                              " and dimension ", dim);
  const auto layout = make_parameter_layout(wrapper.sizes(), wrapper.strides(), Shard(dim), shard_shape(mesh, axes));
  const auto& piece = layout.pieces[static_cast<std::size_t>(mesh.communicator(axes.shard).rank())];
  auto local = wrapper.detach().narrow(dim, piece.offset, piece.length);
  if (wrapper.is_meta()) {
    local = at::empty_like(local, wrapper.options().device(mesh.device_type()));
    if (at::isFloatingType(wrapper.scalar_type())) local.fill_(std::numeric_limits<double>::quiet_NaN());
  } else {
    local = local.clone();
  }
  return DTensor::from_local(local, mesh, placements, wrapper.sizes(), wrapper.strides());
}

at::Tensor place_regular(const std::string& name, const at::Tensor& regular, const DeviceMesh& mesh,
                         const DeviceMesh& storage_mesh, const Axes& axes, const Placements& placements) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(regular.is_leaf() && !regular.grad().defined(),
              "fully_shard: expected a leaf without a gradient for parameter '", name, "', got ",
              regular.is_leaf() ? "one with a gradient" : "the result of an operator",
              "; shard a model before it is used");
  if (is_wrapper_subclass(regular)) return place_wrapper(name, regular, storage_mesh, axes, placements);
  auto placed = regular.is_meta() ? materialize(regular, storage_mesh, placements)
                                  : at::Tensor(distribute_tensor(regular.detach(), storage_mesh, placements));
  if (storage_mesh != mesh) placed = move_to_storage_mesh(storage_mesh, mesh, DTensor(placed));
  return placed;
}

// Changes the tensor in place, so every handle sees it: redistributes it on its mesh, then moves it to `storage_mesh`.
void place_dtensor(const std::string& name, DTensor tensor, const DeviceMesh& mesh, const DeviceMesh& storage_mesh,
                   const Placements& on_mesh, const Placements& placements) {
  const at::NoGradGuard no_grad;
  if (tensor.mesh() == storage_mesh) {
    if (tensor.placements() != placements) tensor.redistribute_(placements);
    return;
  }
  TORCH_CHECK(!tensor.grad().defined(), "fully_shard: parameter '", name, "' has a gradient on ", tensor.mesh().str(),
              ", but its storage moves to ", storage_mesh.str(), "; shard a model before it is used");
  const auto local = mesh.is_member() ? tensor.to_local() : local_outside_mesh(tensor, mesh.device_type());
  auto placed = DTensor::from_local(local, mesh, on_mesh, tensor.sizes(), tensor.strides()).redistribute(placements);
  tensor.set_data(storage_mesh == mesh ? placed : move_to_storage_mesh(storage_mesh, mesh, placed));
}

Placements without_shards(Placements placements, const Axes& axes) {
  for (const auto axis : axes.shard) placements[static_cast<std::size_t>(axis)] = Replicate();
  return placements;
}

at::Tensor place(const std::string& name, const at::Tensor& tensor, const DeviceMesh& mesh, const Axes& axes,
                 const FsdpOptions& options) {
  const MemoryKindScope kind(MemoryKind::parameter);
  const auto storage_mesh = options.cpu_offload ? mesh.offloaded() : mesh;
  const HostWorkScope host(storage_mesh == mesh ? HostWorkScope::current() : HostWork::compute);
  TORCH_CHECK(tensor.defined(), "fully_shard: expected a defined parameter '", name, "'");
  auto dim = dim_to_shard(name, tensor, options);
  if (!is_dtensor(tensor)) {
    const Placements full_tensor(static_cast<std::size_t>(mesh.ndim()));
    const auto own = keep_last_blocks(add_shard(full_tensor, mesh, axes, dim), name, tensor, mesh, axes, options);
    return place_regular(name, tensor, mesh, storage_mesh, axes, own).requires_grad_(tensor.requires_grad());
  }
  auto on_mesh = placements_on_mesh(name, DTensor(tensor), mesh);
  bool stays = false;
  for (const auto axis : axes.shard) {
    const auto& given = on_mesh[static_cast<std::size_t>(axis)];
    TORCH_CHECK(given.is_replicate() || given.is_storage(), "fully_shard: parameter '", name, "' is ", given.str(),
                " on the axis to shard over, because its computation is split there; give it a unit of its own on "
                "another axis");
    if (given.is_storage() && !options.shard_dim) dim = given.dim();
    stays |= lists_sizes(given) && axes.shard.size() == 1 && !options.shard_dim && !options.shard_block;
  }
  const auto own =
      stays ? on_mesh : keep_last_blocks(add_shard(on_mesh, mesh, axes, dim), name, tensor, mesh, axes, options);
  place_dtensor(name, DTensor(tensor), mesh, storage_mesh, on_mesh, own);
  return tensor;
}

Parameter describe(const std::string& name, const at::Tensor& tensor, const DeviceMesh& mesh, const Axes& axes,
                   const FsdpOptions& options) {
  const DTensor placed(tensor);
  const auto& shard = placed.placements()[static_cast<std::size_t>(axes.shard[0])];
  Parameter p;
  p.name = name;
  p.tensor = tensor.getIntrusivePtr();
  p.sharded_placements = placed.placements();
  p.unsharded_placements = without_shards(p.sharded_placements, axes);
  p.gradient_placements = gradient_placements(placed);
  p.sizes = tensor.sizes().vec();
  p.strides = tensor.strides().vec();
  p.storage_mesh = placed.mesh();
  p.dtype = tensor.scalar_type();
  p.param_dtype = param_dtype_of(options.precision, name, p.dtype);
  p.sharded = shard.is_shard() && shard_ranks(mesh, axes) > 1 && mesh.is_member();
  p.in_flat_buffer = p.sharded || (placed.mesh() != mesh && mesh.is_member());
  const at::NoGradGuard no_grad;
  if (mesh.is_member() && is_wrapper_subclass(placed.to_local())) {
    p.extended = std::make_shared<ExtendedGather>();
    p.in_flat_buffer = false;
  }
  if (!p.is_gathered()) return p;
  const auto full_tensor =
      empty(p.sizes, placed.mesh(), p.unsharded_placements, at::TensorOptions(p.dtype)).to_local().sizes().vec();
  p.layout = p.sharded ? make_parameter_layout(full_tensor, p.strides, shard, shard_shape(mesh, axes))
                       : make_parameter_layout(full_tensor, p.strides);
  return p;
}

// Sets two hooks of each parameter: its gather hook, which also marks the tensor as a parameter of the unit, and its
// ReduceStage, which passes its gradients to the schedule. A rank outside the mesh has the mark only.
void attach_hooks(const std::shared_ptr<Unit>& unit) {
  const bool reduces = unit->mesh.is_member() && unit->has_work();
  for (std::size_t k = 0; k < unit->parameters.size(); ++k) {
    const DTensor parameter(unit->parameters[k].lock());
    set_gather_hook(parameter, UnitParameterHook{{unit, k}});
    if (!reduces) continue;
    const auto reduce = [unit, k](const DTensor& leaf, const at::Tensor& gradient) {
      return unit->schedule->gradient(*unit, k, leaf, gradient);
    };
    set_reduce_stage(parameter, reduce, "the reduction of '" + unit->parameters[k].name + "' in " + unit->str());
  }
}

}  // namespace

UnitParameter find_unit_parameter(const at::Tensor& tensor) {
  const auto* member = member_of(tensor);
  return member == nullptr ? UnitParameter{nullptr, 0} : *member;
}

Unit* unit_of(const at::Tensor& tensor, std::size_t& k) {
  const auto* member = member_of(tensor);
  if (member == nullptr) return nullptr;
  k = member->k;
  return member->unit.get();
}

}  // namespace fsdp

FsdpUnit fully_shard(const NamedTensors& parameters, const DeviceMesh& mesh, const FsdpOptions& options) {
  TORCH_CHECK(mesh, "fully_shard: expected a mesh, got an undefined one");
  retie_shared_parameters(parameters);
  const auto elsewhere = fsdp::find_on_other_meshes(parameters, mesh);
  fsdp::shard_on_other_meshes(elsewhere, options);
  const auto axes = fsdp::find_axes(mesh, options);
  auto schedule = std::make_shared<fsdp::Schedule>();
  std::vector<fsdp::Parameter> list;
  std::vector<std::shared_ptr<fsdp::Unit>> joined;
  std::map<const c10::TensorImpl*, at::Tensor> placed;  // by the original tensor, so tied parameters stay tied
  std::vector<at::Tensor> former;                       // kept alive, so that no address is reused
  for (const auto& [name, slot] : parameters) {
    if (const auto* member = fsdp::member_of(*slot)) {
      if (joined.empty() || joined.back() != member->unit) joined.push_back(member->unit);
      continue;
    }
    if (slot->defined() && fsdp::holds(elsewhere, *slot)) continue;
    auto& known = placed[slot->unsafeGetTensorImpl()];
    if (!known.defined()) {
      former.push_back(*slot);
      const auto came_with = fsdp::axes_of(*slot);
      known = fsdp::place(name, *slot, mesh, axes, options);
      if (!known.is_same(*slot)) record_parameter_swap(*slot, known);
      list.push_back(fsdp::describe(name, known, mesh, axes, options));
      list.back().tp_axes = fsdp::find_tp_axes(list.back(), mesh, axes, came_with);
      if (slot->is_meta()) list.back().uninitialized_generation = DTensor(known).generation();
    }
    *slot = known;
  }
  auto unit = std::make_shared<fsdp::Unit>(std::move(list), mesh, options, axes);
  for (const auto& item : parameters) unit->slots.push_back(item.second);
  for (const auto& other : joined) {
    if (other->schedule) schedule = other->schedule;
  }
  fsdp::Schedule::join(schedule, *unit);
  for (const auto& other : joined) fsdp::Schedule::join(schedule, *other);
  fsdp::attach_hooks(unit);
  return FsdpUnit(std::move(unit));
}

std::vector<FsdpUnit> units_of(at::TensorList parameters) {
  std::vector<std::shared_ptr<fsdp::Unit>> found;
  for (const at::Tensor& parameter : parameters) {
    const auto* member = fsdp::member_of(parameter);
    if (member != nullptr && std::find(found.begin(), found.end(), member->unit) == found.end())
      found.push_back(member->unit);
  }
  return {found.begin(), found.end()};
}

}  // namespace dtensor
