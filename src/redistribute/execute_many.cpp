// Rounds: each tensor goes as far as it can without communication, then what waits for the same kind of collective over
// the same ranks goes together. Which tensors those are depends on plans and meshes only, so all members pack alike.
#include "redistribute/execute_many.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <bit>

#include "comm/events.h"
#include "comm/reduce_policy.h"
#include "redistribute/buffers.h"
#include "redistribute/edges/edge.h"
#include "redistribute/execute.h"

namespace dtensor {
namespace {

struct Traveller {
  Journey* journey;
  Geometry geometry;
  at::Tensor at;  // as it is now
  std::size_t next = 0;

  const Edge& edge() const { return journey->plan->edges[next]; }
  bool arrived() const { return next == journey->plan->edges.size(); }
  EdgeCall call() const {
    return EdgeCall(edge(), acting(*journey->from->mesh), geometry, at, !at.is_alias_of(journey->local));
  }
  ReduceOp op() const { return edge().from[std::countr_zero(edge().axes)].reduce_op(); }
  void advance(at::Tensor to) {
    at = std::move(to);
    ++next;
  }
};
using Group = std::vector<Traveller*>;

bool is_reduction(EdgeKind kind) { return kind == EdgeKind::all_reduce || kind == EdgeKind::reduce_scatter; }

bool together(const Traveller& a, const Traveller& b) {
  return a.journey->from->mesh == b.journey->from->mesh && a.edge().kind == b.edge().kind &&
         a.edge().axes == b.edge().axes && a.at.scalar_type() == b.at.scalar_type() &&
         (!is_reduction(a.edge().kind) || a.op() == b.op());
}

const Communicator& communicator_of(const Traveller& t) {
  return acting(*t.journey->from->mesh).communicator(t.edge().axes);
}

// A flat buffer and the parts of it that stand for tensors of these sizes.
std::vector<at::Tensor> parts_of(const at::Tensor& flat, const std::vector<at::DimVector>& sizes) {
  std::vector<at::Tensor> parts;
  std::int64_t offset = 0;
  for (const auto& size : sizes) {
    const auto numel = c10::multiply_integers(size);
    parts.push_back(flat.narrow(0, offset, numel).view(size));
    offset += numel;
  }
  return parts;
}

std::int64_t total(const std::vector<at::DimVector>& sizes) {
  std::int64_t sum = 0;
  for (const auto& size : sizes) sum += c10::multiply_integers(size);
  return sum;
}

void all_reduce(const Group& group) {
  std::vector<at::DimVector> sizes;
  for (const auto* t : group) sizes.emplace_back(t->at.sizes());
  const auto flat = result_buffer({total(sizes)}, group[0]->at);
  const auto parts = parts_of(flat, sizes);
  for (std::size_t k = 0; k < group.size(); ++k) parts[k].copy_(group[k]->at);
  communicator_of(*group[0]).all_reduce(flat, group[0]->op()).wait();
  for (std::size_t k = 0; k < group.size(); ++k) group[k]->advance(parts[k]);
}

// Lists for the communicator: position m * n + k is tensor k for (or from) member m.
void all_gather(const Group& group) {
  const auto members = group[0]->call().members().size(), n = group.size();
  std::vector<at::Tensor> outputs(members * n), inputs, results;
  std::vector<EdgeCall> calls;
  for (const auto* t : group) calls.push_back(t->call());
  std::vector<Arrivals> arrivals;
  for (const auto& call : calls) results.push_back(result_buffer(call.wanted.sizes(), call.local));
  for (std::size_t k = 0; k < n; ++k) {
    arrivals.emplace_back(results[k], calls[k].wanted);
    for (const auto& member : calls[k].members()) {
      arrivals[k].expect(region_of(calls[k].from, calls[k].geometry, member));
    }
    for (std::size_t m = 0; m < members; ++m) outputs[m * n + k] = arrivals[k].views()[m];
    inputs.push_back(calls[k].local);
  }
  communicator_of(*group[0]).all_gather_list(outputs, inputs).wait();
  for (const auto& arrival : arrivals) arrival.finish();
  for (std::size_t k = 0; k < n; ++k) group[k]->advance(results[k]);
}

void reduce_scatter(const Group& group) {
  const auto members = group[0]->call().members().size(), n = group.size();
  std::vector<at::Tensor> outputs, inputs(members * n);
  for (std::size_t k = 0; k < n; ++k) {
    const auto call = group[k]->call();
    const auto all = call.members();
    for (std::size_t m = 0; m < members; ++m) {
      inputs[m * n + k] = read_part(call.local, call.held, region_of(call.to, call.geometry, all[m]));
    }
    outputs.push_back(result_buffer(call.wanted.sizes(), call.local));
  }
  communicator_of(*group[0]).reduce_scatter_list(outputs, inputs, group[0]->op()).wait();
  for (std::size_t k = 0; k < n; ++k) group[k]->advance(outputs[k]);
}

void all_to_all(const Group& group) {
  const auto members = group[0]->call().members().size(), n = group.size();
  std::vector<std::vector<at::Tensor>> leaving(members);
  std::vector<std::vector<at::DimVector>> coming(members);
  std::vector<std::vector<Region>> regions(members);
  std::vector<EdgeCall> calls;
  for (const auto* t : group) calls.push_back(t->call());
  for (const auto& call : calls) {
    const auto all = call.members();
    for (std::size_t m = 0; m < members; ++m) {
      const auto theirs = region_of(call.to, call.geometry, all[m]);
      leaving[m].push_back(read_part(call.local, call.held, common(call.held, theirs)).reshape({-1}));
      regions[m].push_back(common(region_of(call.from, call.geometry, all[m]), call.wanted));
      coming[m].push_back(regions[m].back().sizes());
    }
  }
  std::vector<at::Tensor> departures, arrivals, results;
  for (std::size_t m = 0; m < members; ++m) {
    departures.push_back(at::cat(leaving[m]));
    arrivals.push_back(result_buffer({total(coming[m])}, group[0]->at));
  }
  communicator_of(*group[0]).all_to_all(arrivals, departures).wait();
  for (const auto& call : calls) results.push_back(result_buffer(call.wanted.sizes(), call.local));
  for (std::size_t m = 0; m < members; ++m) {
    const auto parts = parts_of(arrivals[m], coming[m]);
    for (std::size_t k = 0; k < n; ++k) write_part(results[k], calls[k].wanted, regions[m][k], parts[k]);
  }
  for (std::size_t k = 0; k < n; ++k) group[k]->advance(results[k]);
}

void run_local(Traveller& t) {
  while (!t.arrived() && (t.edge().kind == EdgeKind::slice || t.edge().kind == EdgeKind::make_partial)) {
    const auto call = t.call();
    t.advance(t.edge().kind == EdgeKind::slice ? run_slice(call) : run_make_partial(call));
  }
}

void run_group(const Group& group) {
  switch (group[0]->edge().kind) {
    case EdgeKind::all_reduce:
      return all_reduce(group);
    case EdgeKind::all_gather:
      return all_gather(group);
    case EdgeKind::reduce_scatter:
      return reduce_scatter(group);
    default:
      return all_to_all(group);
  }
}

std::vector<Group> groups_of(std::vector<Traveller>& travellers) {
  std::vector<Group> groups;
  for (auto& t : travellers) {
    run_local(t);
    if (t.arrived()) continue;
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return together(*g[0], t); });
    found == groups.end() ? groups.push_back({&t}) : found->push_back(&t);
  }
  return groups;
}

// Types that are carried in another while they are reduced, and tensors without memory of their own, go by themselves.
bool goes_alone(const Journey& j) {
  const auto type = j.local.scalar_type();
  return c10::isFloat8Type(type) || carried_type(type) != at::ScalarType::Undefined || j.local._is_zerotensor() ||
         j.local.is_conj() || j.local.is_neg();
}

}  // namespace

void execute_plans(std::vector<Journey>& journeys) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_scope(c10::DispatchKey::DeferredInit);
  std::vector<Traveller> travellers;
  std::int64_t bytes = 0;
  Event event{Event::Kind::redistribute, {}, "", 0, std::chrono::steady_clock::now(), {}};
  for (auto& j : journeys) {
    if (goes_alone(j)) {
      j.local = execute_plan(*j.plan, j.local, *j.from);
      continue;
    }
    travellers.push_back({&j, {j.from->sizes, j.from->mesh->layout.shape, j.local.element_size()}, j.local});
    bytes += j.plan->bytes_moved;
  }
  for (auto groups = groups_of(travellers); !groups.empty(); groups = groups_of(travellers)) {
    for (const auto& group : groups) run_group(group);
  }
  for (auto& t : travellers) t.journey->local = std::move(t.at);
  if (travellers.empty() || !events_on(Event::Kind::redistribute)) return;
  event.name = std::to_string(travellers.size()) + " tensors of a list, as " + travellers[0].journey->plan->str();
  event.bytes = bytes;
  event.end = std::chrono::steady_clock::now();
  emit_event(event);
}

}  // namespace dtensor
