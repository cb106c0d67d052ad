// Works in rounds: each tensor proceeds until it needs communication; then tensors that need the same kind of
// collective over the same ranks are packed. The packing depends on plans and meshes only, so it is equal on all
// members.
#include "redistribute/batched.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <bit>
#include <functional>

#include "comm/event_listeners.h"
#include "internal/aten_scopes.h"
#include "internal/bucketed_all_to_all.h"
#include "internal/dispatch_modes.h"
#include "internal/simulated.h"
#include "internal/wrapper_subclass.h"
#include "redistribute/edges/edge.h"
#include "redistribute/execute.h"
#include "redistribute/result_buffers.h"

namespace dtensor {
namespace {

using Pending = RedistributeBucket::Pending;
using Group = std::vector<Pending*>;
using Finish = std::function<void()>;  // waits, and advances the group to its next edge

const Edge& edge_of(const Pending& p) { return p.plan->edges[p.next]; }
bool arrived(const Pending& p) { return !p.packed || p.next == p.plan->edges.size(); }
ReduceOp op_of(const Pending& p) { return edge_of(p).from[std::countr_zero(edge_of(p).axes)].reduce_op(); }
EdgeCall call_of(const Pending& p) {
  return EdgeCall(edge_of(p), as_mesh_impl(*p.from->mesh), p.geometry, p.current, p.current.scalar_type(),
                  !shares_storage(p.current, p.given));
}
void step(Pending& p, at::Tensor to) {
  p.current = std::move(to);
  ++p.next;
}
void step(const Group& group, const std::vector<at::Tensor>& to) {
  for (std::size_t k = 0; k < group.size(); ++k) step(*group[k], to[k]);
}

bool is_reduction(EdgeKind kind) { return kind == EdgeKind::all_reduce || kind == EdgeKind::reduce_scatter; }

bool can_coalesce(const Pending& a, const Pending& b) {
  return a.from->mesh == b.from->mesh && edge_of(a).kind == edge_of(b).kind && edge_of(a).axes == edge_of(b).axes &&
         a.current.scalar_type() == b.current.scalar_type() && (!is_reduction(edge_of(a).kind) || op_of(a) == op_of(b));
}

const Communicator& communicator_of(const Group& group) {
  return as_mesh_impl(*group[0]->from->mesh).communicator(edge_of(*group[0]).axes);
}

// The number of elements of a tensor in a buffer. On GPUs it is rounded up to 16 bytes, since kernels with 16-byte
// loads require aligned addresses.
std::int64_t padded_numel(const at::Tensor& t) {
  const auto step = t.is_cpu() ? 1 : std::max<std::int64_t>(1, 16 / static_cast<std::int64_t>(t.element_size()));
  return (t.numel() + step - 1) / step * step;
}

// The sums are views of one buffer, in the dimension order of their specs.
Finish all_reduce(const Group& group) {
  std::int64_t count = 0, used = 0, offset = 0;
  for (const auto* p : group) count += padded_numel(p->current), used += p->current.numel();
  if (group.size() == 1) count = used;
  const auto flat = result_buffer({count}, group[0]->current);
  if (count > used) flat.zero_();
  std::vector<at::Tensor> sums;
  for (const auto* p : group) {
    sums.push_back(
        flat.as_strided(p->current.sizes(), at::infer_dense_strides(p->current.sizes(), p->from->strides), offset));
    sums.back().copy_(p->current);
    offset += padded_numel(p->current);
  }
  // A single tensor is sent like in execute_plan, element by element: other ranks may have more tensors on other
  // meshes, or this one alone.
  const auto& sent = group.size() == 1 ? sums[0] : flat;
  return [group, sums, work = communicator_of(group).all_reduce(sent, op_of(*group[0]))]() mutable {
    work.wait();
    step(group, sums);
  };
}

using Exchanges = std::vector<RegionExchange>;  // of a group

Exchanges exchanges_of(const Group& group) {
  Exchanges exchanges;
  for (const auto* p : group) exchanges.push_back(exchange_of(call_of(*p)));
  return exchanges;
}

void finish(const Group& group, const Exchanges& exchanges) {
  for (std::size_t k = 0; k < group.size(); ++k) step(*group[k], exchanges[k].finish());
}

// Lists for the communicator: the parts of all tensors for (or from) the first member, then those of the next one.
template <class PartsOf>
std::vector<at::Tensor> by_member(const Exchanges& exchanges, const PartsOf& parts_of) {
  std::vector<at::Tensor> list;
  for (std::size_t m = 0; m < parts_of(exchanges[0]).size(); ++m) {
    for (const auto& exchange : exchanges) list.push_back(parts_of(exchange)[m]);
  }
  return list;
}

Finish all_gather(const Group& group) {
  auto exchanges = exchanges_of(group);
  std::vector<at::Tensor> inputs;
  for (const auto* p : group) inputs.push_back(p->current);
  const auto outputs = by_member(exchanges, std::mem_fn(&RegionExchange::targets));
  auto work = communicator_of(group).all_gather_list(outputs, inputs);
  return [group, exchanges = std::move(exchanges), work]() mutable {
    work.wait();
    finish(group, exchanges);
  };
}

Finish reduce_scatter(const Group& group) {
  auto exchanges = exchanges_of(group);
  std::vector<at::Tensor> outputs;
  for (const auto& exchange : exchanges) outputs.push_back(exchange.result());
  const auto inputs = by_member(exchanges, std::mem_fn(&RegionExchange::pieces));
  auto work = communicator_of(group).reduce_scatter_list(outputs, inputs, op_of(*group[0]));
  return [group, outputs, work]() mutable {
    work.wait();
    step(group, outputs);
  };
}

Finish all_to_all(const Group& group) {
  auto exchanges = exchanges_of(group);
  BucketedAllToAll parts;
  const auto bucket = parts.bucket(communicator_of(group), group[0]->current.scalar_type());
  for (const auto& exchange : exchanges) exchange.join(parts, bucket);
  return [group, exchanges = std::move(exchanges), arrived = parts.start()] {
    arrived();
    finish(group, exchanges);
  };
}

void run_local(Pending& p) {
  while (!arrived(p) && (edge_of(p).kind == EdgeKind::slice || edge_of(p).kind == EdgeKind::make_partial)) {
    const auto call = call_of(p);
    step(p, edge_of(p).kind == EdgeKind::slice ? run_slice(call) : run_make_partial(call));
  }
}

Finish start(const Group& group) {
  switch (edge_of(*group[0]).kind) {
    case EdgeKind::all_reduce:
      return all_reduce(group);
    case EdgeKind::all_gather:
      return all_gather(group);
    case EdgeKind::reduce_scatter:
      return reduce_scatter(group);
    case EdgeKind::all_to_all:
      return all_to_all(group);
    case EdgeKind::slice:
    case EdgeKind::make_partial:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "run_local takes local edges");
}

std::vector<Group> groups_of(std::deque<Pending>& pending) {
  std::vector<Group> groups;
  for (auto& p : pending) {
    run_local(p);
    if (arrived(p)) continue;
    const auto found =
        std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return can_coalesce(*g[0], p); });
    found == groups.end() ? groups.push_back({&p}) : found->push_back(&p);
  }
  return groups;
}

}  // namespace

void RedistributeBucket::add(const RedistributePlan& plan, const TensorSpec& from, at::Tensor local) {
  if (!plan.empty()) check_is_no_wrapper(local, "redistribute");
  const bool alone = c10::isFloat8Type(local.scalar_type());  // its sums are communicated in another dtype
  const TensorGeometry geometry{from.sizes, from.mesh->layout.shape, static_cast<std::int64_t>(local.element_size())};
  if (!alone && !plan.empty()) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    local = resolve_conj_and_neg(local);
  }
  pending_.push_back({&plan, &from, geometry, local, alone ? execute_plan(plan, local, from) : local, 0, !alone});
}

void RedistributeBucket::run() {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const DisableDispatchModesGuard hidden;
  const NoMeshScopeGuard regular;
  const auto begin = std::chrono::steady_clock::now();
  for (auto groups = groups_of(pending_); !groups.empty(); groups = groups_of(pending_)) {
    std::vector<Finish> round;
    for (const auto& group : groups) round.push_back(start(group));
    for (const auto& finish : round) finish();
  }
  report(begin);
}

void RedistributeBucket::report(std::chrono::steady_clock::time_point begin) const {
  if (!is_listening(Event::Kind::redistribute)) return;
  Event event{Event::Kind::redistribute, {}, "", 0, begin, {}};
  std::size_t count = 0;
  for (const auto& p : pending_) {
    if (!p.packed) continue;
    event.bytes += p.plan->bytes_moved;
    if (count++ == 0) event.name = p.plan->str();
  }
  if (count == 0) return;
  event.name = std::to_string(count) + " packed tensors, the first by " + event.name;
  emit_event(event);
}

}  // namespace dtensor
