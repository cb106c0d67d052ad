// MeshScope: a dispatch mode whose kernels replace factory operators. It uses the free key DeferredInit in this
// thread's included set. Each tensor is created with its local size. Random tensors are filled by global index. Tensors
// whose values depend on the position (arange, eye, tril_indices, ...) are created in full and sharded.

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <mutex>

#include "autograd/conversion_nodes.h"
#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"
#include "internal/scoped_value.h"
#include "mesh/mesh_impl.h"
#include "ops/dispatch/registration.h"
#include "ops/local_kernels/special/special_kernel.h"
#include "placement/shard_map.h"
#include "random/fill.h"
#include "random/state.h"

namespace dtensor {

namespace {

struct Scope {
  c10::intrusive_ptr<MeshImpl> mesh;
  Placements placements;
};

using torch::jit::Stack;

enum class Factory { constant, random, positional };

Factory kind_of(const OpInfo& op) {
  static const std::unordered_map<std::string, Factory> kinds = {
      {"aten::empty", Factory::constant},  {"aten::empty_strided", Factory::constant},
      {"aten::zeros", Factory::constant},  {"aten::ones", Factory::constant},
      {"aten::full", Factory::constant},   {"aten::scalar_tensor", Factory::constant},
      {"aten::rand", Factory::random},     {"aten::randn", Factory::random},
      {"aten::randint", Factory::random},  {"aten::normal", Factory::random},
      {"aten::randperm", Factory::random},
  };
  const auto it = kinds.find(op.name().name);
  return it == kinds.end() ? Factory::positional : it->second;
}

// Shard of a dimension that the tensor lacks becomes Replicate.
Placements placements_for(const Scope& scope, std::int64_t ndim) {
  auto placements = scope.placements;
  for (auto& p : placements) {
    if (!p.is_shard()) continue;
    const auto dim = p.dim() < 0 ? p.dim() + ndim : p.dim();
    p = dim >= 0 && dim < ndim ? p.with_dim(dim) : Replicate();
  }
  return placements;
}

at::Tensor call(const OpInfo& op, Stack stack) {
  op.op.callBoxed(stack);
  return std::move(stack.back()).toTensor();
}

Stack on_device(c10::DeviceType type, const OpInfo& op, Stack stack) {
  if (op.device_arg >= 0) stack[op.device_arg] = c10::IValue(c10::Device(type));
  return stack;
}

// A meta tensor with the sizes that one device would create.
at::Tensor global_shape(const OpInfo& op, const Stack& stack) {
  if (op.name().name != "aten::randperm") return call(op, on_device(c10::kMeta, op, stack));
  const auto& dtype = stack[op.dtype_arg];  // randperm has no meta kernel
  return at::empty({stack[0].toInt()},
                   at::TensorOptions(dtype.isNone() ? at::kLong : dtype.toScalarType()).device(at::kMeta));
}

// Strides have the spec's order of dimensions, so a view of the global tensor is also a view of the local one.
at::Tensor empty_local(const TensorSpec& spec) {
  return at::empty_strided(spec.local_sizes, at::infer_dense_strides(spec.local_sizes, spec.strides),
                           at::TensorOptions(spec.dtype).device(at::Device(spec.mesh->device)));
}

// at::tensor and torch::tensor create an empty vector with a dtype and write all numbers through its data pointer. So
// such a vector gets memory of its global size, and its local tensor is a view of that memory. Returns an undefined
// tensor in all other cases.
at::Tensor make_writable(const OpInfo& op, const Stack& stack, const SpecPtr& spec) {
  const bool asked = op.name().name == "aten::empty" && spec->dim() == 1;
  if (!asked || stack[op.dtype_arg].isNone()) return {};
  const auto& mesh = *spec->mesh;
  if (mesh.device != c10::kCPU || mesh.compute_mesh() != nullptr || spec->has_partial) return {};
  Segments mine{{0, 0}};
  if (mesh.is_member) mine = shard_segments(spec->sizes[0], 0, spec->placements, mesh.layout.shape, mesh.coordinate);
  if (mine.size() != 1) return {};
  const auto full = call(op, stack);
  const auto part = full.narrow(0, mine[0].offset, mine[0].length);
  auto result = make_dtensor(spec, mesh.is_member ? part : at::Tensor());
  dtensor_or_null(result)->set_temporary_storage(full.storage());
  return result;
}

at::Tensor make_constant(const OpInfo& op, const Stack& stack, const TensorSpec& spec) {
  if (op.name().name.starts_with("aten::empty")) return empty_local(spec);
  auto local = on_device(spec.mesh->device, op, stack);
  const auto size = op.schema().argumentIndexWithName("size");
  if (size) local[*size] = c10::IValue(c10::IntArrayRef(spec.local_sizes));
  return call(op, std::move(local));
}

// Every rank draws the full permutation and keeps its part.
at::Tensor make_permutation(const Scope& scope, const SpecPtr& spec) {
  const auto options = at::TensorOptions(spec->dtype).device(at::Device(spec->mesh->device));
  const auto key = next_random_key(as_mesh_impl(*spec->mesh));
  return distribute_regular_tensor(random_permutation(spec->sizes[0], key, options), scope.mesh, spec->placements);
}

at::Tensor make_random(const Scope& scope, const OpInfo& op, const Stack& stack, const SpecPtr& spec) {
  check_no_generator(op, stack);
  if (op.name().name == "aten::randperm") return make_permutation(scope, spec);
  auto result = make_dtensor(spec, spec->mesh->is_member ? empty_local(*spec) : at::Tensor());
  draw_as(op, stack, result);
  return result;
}

at::Tensor make_full(const Scope& scope, const OpInfo& op, const Stack& args) {
  const auto kind = kind_of(op);
  if (kind == Factory::positional) {
    const auto full = call(op, on_device(scope.mesh->device, op, args));
    return distribute_regular_tensor(full, scope.mesh, placements_for(scope, full.dim()));
  }
  const auto shape = global_shape(op, args);
  const auto spec =
      intern_spec(scope.mesh, placements_for(scope, shape.dim()), shape.sizes(), shape.strides(), shape.scalar_type());
  if (kind == Factory::random) return make_random(scope, op, args, spec);
  if (auto writable = make_writable(op, args, spec); writable.defined()) return writable;
  return make_dtensor(spec, spec->mesh->is_member ? make_constant(op, args, *spec) : at::Tensor());
}

// On a Partial axis the factory's arguments describe the full tensor, not the summand of each rank.
at::Tensor make_in_scope(const Scope& scope, const OpInfo& op, const Stack& args) {
  const auto is_partial = [](const Placement& p) { return p.is_partial(); };
  if (std::none_of(scope.placements.begin(), scope.placements.end(), is_partial)) return make_full(scope, op, args);
  Scope full = scope;
  std::replace_if(full.placements.begin(), full.placements.end(), is_partial, Replicate());
  const DTensor made(make_full(full, op, args));
  return made.redistribute(placements_for(scope, made.dim()));
}

void factory_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(kMeshScopeKey);
  const auto* scope = ScopedValue<Scope>::current();
  if (scope == nullptr) return op.callBoxed(*stack);
  auto result = make_in_scope(*scope, entry_of(op), torch::jit::pop(*stack, op.schema().arguments().size()));
  stack->emplace_back(std::move(result));
}

// Other operators run outside the scope, so that a kernel allocates regular tensors. Composite operators stay inside,
// because they consist of operators that are dispatched again.
void other_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kMeshScopeKey);
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return op.redispatchBoxed(below, stack);
  c10::impl::ExcludeDispatchKeyGuard guard(kMeshScopeKey);
  op.redispatchBoxed(below, stack);
}

bool is_factory(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return false;
  const OpInfo& info = entry_of(op);
  const auto holds_tensors = [](const ArgInfo& arg) { return arg.holds_tensors(); };
  return info.dtype_arg >= 0 && info.name().name.starts_with("aten::") && info.returns.size() == 1 &&
         info.returns_tensors_only() && std::none_of(info.args.begin(), info.args.end(), holds_tensors);
}

void register_factories() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto& handles = *new std::vector<c10::RegistrationHandleRAII>();  // never destroyed
  handles.push_back(dispatcher.registerFallback(
      kMeshScopeKey, c10::KernelFunction::makeFromBoxedFunction<&other_kernel>(), "dtensor mesh scope"));
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !is_factory(*op)) continue;
    handles.push_back(dispatcher.registerImpl(name, kMeshScopeKey,
                                              c10::KernelFunction::makeFromBoxedFunction<&factory_kernel>(),
                                              std::nullopt, nullptr, "dtensor mesh scope"));
  }
}

void mark_thread() {
  const bool any = ScopedValue<Scope>::current() != nullptr;
  c10::impl::tls_set_dispatch_key_included(kMeshScopeKey, any);
}

// Calls on this thread pass through the key of the factories while a scope is current.
std::shared_ptr<const void> open_mesh_scope(const std::shared_ptr<const void>& scope) {
  static constexpr detail::ScopeFrame::Kind kKind{typeid(Scope), Recompute::restored, OperatorScope::no,
                                                  open_mesh_scope};
  const auto close = [](const detail::ScopeFrame* frame) {
    delete frame;
    mark_thread();
  };
  const std::shared_ptr<const void> frame(new detail::ScopeFrame(kKind, scope), close);
  mark_thread();
  return frame;
}

}  // namespace

MeshScope::MeshScope(DeviceMesh mesh, Placements placements) {
  ensure_registered();
  static std::once_flag once;
  std::call_once(once, register_factories);
  TORCH_CHECK(mesh, "MeshScope: expected a mesh, got an empty DeviceMesh");
  if (placements.empty()) placements.resize(static_cast<std::size_t>(mesh.ndim()));
  TORCH_CHECK(static_cast<std::int64_t>(placements.size()) == mesh.ndim(), "MeshScope: ", placements.size(),
              " placements for ", mesh.str());
  scope_ = open_mesh_scope(std::make_shared<const Scope>(Scope{impl_of(mesh), std::move(placements)}));
}

MeshScope::~MeshScope() = default;

}  // namespace dtensor
