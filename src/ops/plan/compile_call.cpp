// The miss path: runs sharding propagation, and compiles the decision into plans, specs and prototypes.
#include "ops/plan/compile_call.h"

#include "autograd/gradients/gradient_resharding.h"
#include "internal/shard_segments.h"
#include "mesh/mesh_impl.h"
#include "ops/checks/global_call_check.h"
#include "ops/checks/index_bounds.h"
#include "ops/checks/inspect_state.h"
#include "ops/execute/gradient_target.h"
#include "ops/local_kernels/special/special_kernel.h"

namespace dtensor {
namespace {

// Throws if a rank outside the mesh would have to write a regular tensor, for which it has no data. List positions are
// exempt: they are omitted on that rank.
void check_writable_regular_tensor(const OpEntry& entry, const Operand& operand, const c10::TensorImpl* impl) {
  if (!operand.spec || operand.list_index >= 0) return;
  TORCH_CHECK(operand.spec->mesh->is_member || has_dtensor_key(impl), entry.name(),
              ": would write a DTensor's data into the regular tensor `",
              entry.schema().arguments()[static_cast<std::size_t>(operand.arg)].name(), "` on world rank ",
              operand.spec->mesh->world_rank, ", which is outside the mesh");
}

// Whether the only changes are from Partial to Replicate.
bool only_reduces(const TensorSpec& from, const TensorSpec& to) {
  const auto otherwise = [](const Placement& a, const Placement& b) { return !a.is_partial() || !b.is_replicate(); };
  return !same_data(from, to) && differing_axes(from, to, otherwise) == 0;
}

// Whether placements fit sizes. The placements of an out= result may name dimensions that the out= tensor lacks, or
// list other sizes than its own.
bool fits(const Placements& placements, at::IntArrayRef sizes) {
  return std::all_of(placements.begin(), placements.end(), [&](const Placement& p) {
    return !p.is_shard() || (p.dim() < static_cast<std::int64_t>(sizes.size()) && fits_size(p, sizes[p.dim()]));
  });
}

InputAction make_input(const OpEntry& entry, const Operand& operand, const Placements& needed, bool mutated) {
  InputAction action;
  action.from = operand.spec;
  const auto& arg = entry.args[operand.arg];
  action.mutated = mutated;
  action.out = arg.out;
  if (!operand.spec) return action;
  const bool stays = needed.empty() || needed == operand.spec->placements || (arg.out && !fits(needed, operand.sizes));
  action.to = stays ? operand.spec : with_placements(*operand.spec, needed);
  if (action.to != action.from) action.plan = plan_redistribute(*action.from, action.to->placements);
  action.result = action.to;
  action.reduces = entry.reads_only() && !mutated && only_reduces(*action.from, *action.to);
  action.reshards = !action.plan.empty() && shards_differently(*action.from, *action.to);
  return action;
}

bool have_same_strides(const TensorSpec& a, const TensorSpec& b) { return same_data(a, b) && a.strides == b.strides; }

// Whether the call casts a parameter in storage shards to another dtype without communication.
bool is_cast(const OpEntry& entry, const CachedCall& call) {
  if (!entry.is_cast() || call.outputs.size() != 1) return false;
  const auto& from = call.inputs[0].from;
  const auto& to = call.outputs[0].spec;
  return from && from->has_storage && call.inputs[0].plan.empty() && to->mesh == from->mesh &&
         have_same_strides(*from, *to);
}

// Reuses the operand's spec if it is equal, since a list operator may write thousands of operands.
SpecPtr spec_of_result(const OutputDecision& decision, const CachedCall& call) {
  const auto& meta = decision.meta;
  const auto& own = decision.alias < 0 ? SpecPtr() : call.inputs[static_cast<std::size_t>(decision.alias)].from;
  const bool known = own && own->mesh == decision.mesh && own->dtype == meta.dtype && own->sizes == meta.sizes &&
                     own->strides == meta.strides && own->placements == decision.placements;
  return known ? own : intern_spec(decision.mesh, decision.placements, meta.sizes, meta.strides, meta.dtype);
}

bool has_other_rows(const TensorSpec& from, const TensorSpec& to, std::int64_t dim) {
  return from.dim() == to.dim() && from.sizes[static_cast<std::size_t>(dim)] != to.sizes[static_cast<std::size_t>(dim)];
}

// Whether a local kernel moves rows of the operand, so that the result shares no memory with it: it gathers an axis
// that shards the operand, or the result has a part of the sharded rows.
bool sent_by_kernel(const Decision& decision, const SpecPtr& from, const TensorSpec& to) {
  for (std::size_t a = 0; a < to.placements.size(); ++a) {
    const bool sharded_by_kernel = (decision.local_kernel_axes >> a & 1) != 0;
    if (!sharded_by_kernel || !from || !from->placements[a].is_shard()) continue;
    if (!to.placements[a].is_shard() || has_other_rows(*from, to, from->placements[a].dim())) return true;
  }
  return false;
}

OutputAction make_output(const OutputDecision& decision, const CachedCall& call) {
  OutputAction action;
  action.alias = decision.alias;
  action.undefined = decision.mesh && !decision.meta.defined;
  if (!decision.mesh || action.undefined) return action;
  const auto& meta = decision.meta;
  action.dynamic = meta.from_local;
  if (action.dynamic) {
    action.spec = intern_spec(decision.mesh, Placements(decision.placements.size()), {0}, {1}, meta.dtype);
    return action;
  }
  action.spec = spec_of_result(decision, call);
  if (action.alias >= 0 && !decision.is_view) return action;
  action.prototype = c10::make_intrusive<DTensorImpl>(action.spec, at::Tensor());
  action.contiguous = !decision.is_view && action.prototype->is_contiguous();
  action.ordered = !decision.is_view;
  if (decision.is_view) {
    action.base = std::max(action.alias, 0);
    action.alias = -1;
    action.offset_delta = meta.offset_delta;
    const auto& base = call.inputs[action.base];
    action.ordered = sent_by_kernel(call.decision, base.to, *action.spec);
    action.materialized = base.from && (action.ordered || !base.plan.empty());
    if (!action.materialized) action.source = action.base;
  }
  return action;
}

// The operand's own placements if they fit the sizes of the result, otherwise those of the result.
const Placements& placements_that_fit(const TensorSpec& own, const TensorSpec& result) {
  return fits(own.placements, result.sizes) ? own.placements : result.placements;
}

// Plans write-backs of in-place and out= operands: from the placements that the local call leaves to the operand's own.
void plan_write_backs(CachedCall& call) {
  for (const auto& output : call.outputs) {
    if (output.alias < 0 || !output.spec || output.dynamic) continue;
    auto& input = call.inputs[output.alias];
    input.result = output.spec;
    if (input.from && !at::IntArrayRef(output.spec->sizes).equals(input.from->sizes)) {
      input.resized = with_placements(*output.spec, placements_that_fit(*input.from, *output.spec));
    }
  }
  for (auto& input : call.inputs) {
    if (!input.mutated || !input.from) continue;
    if (input.resized) {
      input.write_back = true;
      input.write_back_plan = plan_redistribute(*input.result, input.resized->placements);
      continue;
    }
    const auto& own = input.from->placements;
    input.write_back =
        !input.plan.empty() || !have_same_strides(*with_placements(*input.from, input.result->placements), *input.from);
    if (input.write_back)
      input.write_back_plan = plan_redistribute(*with_placements(*input.from, input.result->placements), own);
  }
}

// Whether only storage shards are gathered, which does not count as an implicit redistribution.
bool only_gathers_storage(const TensorSpec& from, const TensorSpec& to) {
  return differing_axes(from, to, [](const Placement& own, const Placement&) { return !own.is_storage(); }) == 0;
}

std::int64_t count_implicit_bytes(const OpEntry& entry, const CachedCall& call) {
  if (entry.returns.size() == 1 && entry.returns[0].is_number) return 0;
  std::int64_t bytes = 0;
  for (const auto& input : call.inputs) {
    if (!input.from || only_gathers_storage(*input.from, *input.to)) continue;
    bytes += input.plan.bytes_moved + input.write_back_plan.bytes_moved;
  }
  return bytes;
}

// Whether the local operator and the wrapping of its results are simple. Operands are not considered.
bool is_simple_call(const OpEntry& entry, const CachedCall& call) {
  const auto remakes = [](const OutputAction& o) { return o.materialized || o.dynamic; };
  return call.local_kernel == nullptr && call.absent_positions.empty() && call.bounds.empty() && !entry.is_random &&
         std::none_of(call.outputs.begin(), call.outputs.end(), remakes);
}

bool moves(const InputAction& i) { return i.write_back || i.out || !i.plan.empty(); }

Executor executor_of(const OpEntry& entry, const CachedCall& call, bool member) {
  if (entry.inplace_view) return Executor::inplace_view;
  if (!member) return Executor::outside;
  const bool simple = is_simple_call(entry, call) && std::none_of(call.inputs.begin(), call.inputs.end(), moves);
  return simple ? Executor::simple : Executor::general;
}

// Whether the call would be simple if its operands in storage shards were gathered. Calls with lists are excluded.
bool only_gathers(const OpEntry& entry, const CachedCall& call) {
  const auto in_list = [](const auto& arg) { return arg.kind == ArgKind::tensor_list; };
  const auto otherwise = [](const InputAction& i) {
    return moves(i) && (i.mutated || i.out || i.write_back || !i.from->has_storage);
  };
  return call.executor == Executor::general && is_simple_call(entry, call) && call.implicit_bytes == 0 &&
         !call.reduces && !call.reshards && std::none_of(entry.args.begin(), entry.args.end(), in_list) &&
         std::none_of(call.inputs.begin(), call.inputs.end(), otherwise);
}

bool returns_floating(const CachedCall& call) {
  return std::any_of(call.decision.outputs.begin(), call.decision.outputs.end(), [](const OutputDecision& output) {
    return output.mesh && (c10::isFloatingType(output.meta.dtype) || c10::isComplexType(output.meta.dtype));
  });
}

// Only the boxed kernel counts and compares regular operands, copies host operands to the device and reads the default
// dtype. Calls that need this are not unboxable.
void compile_unboxed(const OpEntry& entry, CachedCall& call, const CallOperands& operands) {
  const auto& patches = call.decision.patches;
  call.gathers = only_gathers(entry, call);
  call.unboxable = (call.executor == Executor::simple || call.gathers) && patches.size() <= 1 &&
                   !operands.has_regular && !operands.has_host_operand() &&
                   !(operands.has_no_floating_operand() && returns_floating(call));
  if (!call.unboxable || patches.empty()) return;
  call.unboxable = patches[0].value.isIntList();
  if (!call.unboxable) return;
  call.size_patch_arg = patches[0].arg;
  for (auto size : patches[0].value.toIntVector()) call.size_patch.emplace_back(size);
}

// A random operator that runs replicated needs a local kernel that draws the same numbers on every rank.
std::string_view local_kernel_name(const OpEntry& entry, const Decision& decision) {
  const bool draws = entry.is_random && entry.generator_arg >= 0;
  return decision.local_kernel.empty() && draws ? "random_replicated" : std::string_view(decision.local_kernel);
}

bool on_any_member_mesh(const OpCall& call) {
  for (const auto& operand : call.operands) {
    if (operand.spec && operand.spec->mesh->is_member) return true;
  }
  return call.operands.empty();
}

// List positions on meshes that exclude this rank. The local call omits them.
std::vector<bool> absent_positions(const OpCall& call) {
  std::vector<bool> absent;
  for (const auto& operand : call.operands) {
    if (operand.list_index < 0) continue;
    const auto at = static_cast<std::size_t>(operand.list_index);
    if (absent.size() <= at) absent.resize(at + 1);
    if (operand.spec && !operand.spec->mesh->is_member) absent[at] = true;
  }
  return absent;
}

// Throws if an operand that all list positions share is a DTensor on a mesh that excludes this rank.
void check_shared_are_here(const OpEntry& entry, const OpCall& call, const CallOperands& operands) {
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    const auto& operand = call.operands[i];
    if (operand.list_index >= 0 || !operand.spec || operand.spec->mesh->is_member) continue;
    if (!has_dtensor_key(operands.tensors[i])) continue;
    TORCH_CHECK(false, entry.name(), ": `", entry.schema().arguments()[static_cast<std::size_t>(operand.arg)].name(),
                "` is needed on world rank ", call.mesh->world_rank,
                ", which is outside its mesh. Pass a regular tensor that is equal on all ranks.");
  }
}

// Whether this rank participates in the call; for a list operator, in any position.
bool takes_part(const OpEntry& entry, const OpCall& described, const CallOperands& operands, CachedCall& call) {
  if (!entry.foreach_op()) return on_any_member_mesh(described);
  auto absent = absent_positions(described);
  const auto missing = static_cast<std::size_t>(std::count(absent.begin(), absent.end(), true));
  if (missing == 0 || missing == absent.size()) return missing < absent.size();
  check_shared_are_here(entry, described, operands);
  call.absent_positions = std::move(absent);
  return true;
}

bool moves_list(const OpCall& described, const CachedCall& call) {
  int moved = 0;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    moved += described.operands[i].list_index >= 0 && !call.inputs[i].plan.empty() ? 1 : 0;
  }
  return moved > 1;
}

// Handles a device argument. Results on another device type are on the mesh of the same ranks with that type. Tensors
// in host memory report the device of their compute mesh, so results for that device are created in host memory too.
void resolve_device_argument(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, CachedCall& call) {
  if (!call.mesh || entry.device_arg < 0) return;
  const auto& device = args[static_cast<std::size_t>(entry.device_arg)];
  const bool elsewhere = device.isDevice() && device.toDevice().type() != call.mesh->reported_device();
  if (!elsewhere && call.mesh->compute_mesh() == nullptr) return;
  if (!elsewhere) {
    return call.decision.patches.push_back({entry.device_arg, c10::IValue(c10::Device(call.mesh->device))});
  }
  const auto mesh = intern_mesh(call.mesh->layout, as_mesh_impl(*call.mesh).world(), device.toDevice().type());
  for (auto& output : call.decision.outputs) {
    if (output.mesh && output.alias < 0) output.mesh = mesh;
  }
}

void compile_inputs(const OpEntry& entry, const OpCall& described, const CallOperands& operands, CachedCall& call) {
  const auto& mutated = call.decision.mutated;
  for (std::size_t i = 0; i < described.operands.size(); ++i) {
    const auto& operand = described.operands[i];
    if (operand.spec) call.key_specs.push_back(operand.spec);
    const bool written = std::find(mutated.begin(), mutated.end(), static_cast<int>(i)) != mutated.end();
    if (written && operand.defined) {
      check_writable_regular_tensor(entry, operand, operands.tensors[i]);
      call.written.push_back(static_cast<std::uint32_t>(i));
    }
    call.inputs.push_back(make_input(entry, operand, call.decision.inputs[i], written));
    call.input_specs.push_back(call.inputs.back().to);
    call.reduces = call.reduces || call.inputs.back().reduces;
    call.reshards = call.reshards || call.inputs.back().reshards;
  }
}

void compile_outputs(const OpEntry& entry, CachedCall& call) {
  for (const auto& output : call.decision.outputs) {
    call.outputs.push_back(make_output(output, call));
    if (is_cast(entry, call)) call.outputs.back().source = 0;
    call.output_specs.push_back(call.outputs.back().spec);
  }
  if (!entry.inplace_view) plan_write_backs(call);
}

}  // namespace

std::unique_ptr<CachedCall> compile_call(const OpEntry& entry, c10::ArrayRef<c10::IValue> args,
                                         const CallOperands& operands) {
  check_no_generator(entry, args);
  const auto described = describe_call(entry, args, operands);
  auto call = std::make_unique<CachedCall>();
  call->key = operands.key;
  call->hash = operands.key.hash();
  call->mesh = described.mesh;
  if (entry.rule().data().follows_parameter_placement) {
    for (auto& leaf : gradient_leaf_specs()) call->key_specs.push_back(std::move(leaf));
  }
  call->decision = propagate(described);
  resolve_device_argument(entry, args, *call);
  record_explanation(described);
  compile_inputs(entry, described, operands, *call);
  compile_outputs(entry, *call);
  const auto local_kernel = local_kernel_name(entry, call->decision);
  if (!local_kernel.empty()) call->local_kernel = find_local_kernel(local_kernel);
  validate_full_call(entry, args, *call);
  const bool member = takes_part(entry, described, operands, *call);
  call->moves_list = moves_list(described, *call);
  call->implicit_bytes = count_implicit_bytes(entry, *call);
  if (member) call->bounds = index_bounds(entry, described, *call);
  call->executor = executor_of(entry, *call, member);
  compile_unboxed(entry, *call, operands);
  return call;
}

}  // namespace dtensor
