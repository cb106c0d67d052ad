// Common front end of all backends: checks arguments, numbers calls and emits events. Backends move the bytes.
#include "dtensor/comm.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>

#include "comm/argument_checks.h"
#include "comm/error_messages.h"
#include "comm/event_listeners.h"
#include "comm/memory/pool/buffer_pool.h"
#include "comm/record/call_history.h"
#include "comm/record/caller.h"
#include "comm/record/interned_text.h"
#include "comm/record/rank_record.h"
#include "comm/resolved_values.h"
#include "dtensor/comm_backend.h"
#include "internal/aten_scopes.h"
#include "internal/dispatch_modes.h"
#include "internal/memory_kind.h"
#include "internal/ranks/named_calls.h"
#include "scope/checked.h"

namespace dtensor {
namespace {

std::int64_t bytes_of(const at::Tensor& t) { return static_cast<std::int64_t>(t.nbytes()); }

std::int64_t bytes_received(at::TensorList outputs, int me) {
  std::int64_t bytes = 0;
  for (int i = 0; i < static_cast<int>(outputs.size()); ++i) bytes += i == me ? 0 : bytes_of(outputs[i]);
  return bytes;
}

// The name in profiles: "dtensor::all_gather(tp, 4096 bytes)", with the bytes that this rank receives.
std::string profiled_name(const CollectiveCall& call, std::int64_t bytes) {
  const auto axis = call.label ? *call.label + ", " : std::string();
  return c10::str("dtensor::", to_string(call.kind), "(", axis, bytes, " bytes)");
}

// A collective that emits an event when it is first waited for.
class ReportedWork final : public Work::Impl {
 public:
  ReportedWork(Work work, Event event) : work_(std::move(work)), event_(std::move(event)) {
    event_->kind = Event::Kind::wait;
    event_->bytes = 0;
  }
  void wait() override {
    if (event_) event_->begin = std::chrono::steady_clock::now();
    work_.wait();
    if (event_) emit_event(*std::exchange(event_, std::nullopt));
  }
  bool done() override { return work_.done(); }

 private:
  Work work_;
  std::optional<Event> event_;
};

Event event_of(Event::Kind kind, const CollectiveCall& call) {
  Event event;
  event.kind = kind;
  event.name = to_string(call.kind);
  event.axis = call.label ? *call.label : "";
  event.begin = std::chrono::steady_clock::now();
  return event;
}

void report_contribution(const CollectiveCall& call, at::TensorList given) {
  Event event = event_of(Event::Kind::contribution, call);
  event.tensors = given;
  emit_event(std::move(event));
}

// Runs the backend's call without dispatch modes, and emits events if there are listeners. `given`: what this rank
// contributes.
template <class Run>
auto report(const CommBackend& backend, const CollectiveCall& call, at::TensorList given, std::int64_t bytes,
            Run&& run) {
  const DisableDispatchModesGuard hidden;
  at::RecordFunction profiled(at::RecordScope::USER_SCOPE);
  if (C10_UNLIKELY(profiled.isActive())) profiled.before(profiled_name(call, bytes));
  if (C10_UNLIKELY(is_listening(Event::Kind::contribution)) && !given.empty()) report_contribution(call, given);
  const bool reports_wait = is_listening(Event::Kind::wait);
  if (!is_listening(Event::Kind::collective) && !reports_wait) return run();
  Event event = event_of(Event::Kind::collective, call);
  event.bytes = bytes;
  const bool message = call.kind == CollectiveKind::send || call.kind == CollectiveKind::recv;
  if (!message) event.ranks = backend.ranks(), event.sequence = call.sequence;
  auto result = run();
  if constexpr (std::is_same_v<decltype(result), Work>) {
    if (reports_wait) result = Work(std::make_shared<ReportedWork>(std::move(result), event));
  }
  emit_event(std::move(event));
  return result;
}

}  // namespace

void Work::wait() {
  if (impl_) impl_->wait();
}

bool Work::done() const { return !impl_ || impl_->done(); }

// A communicator made on a thread rank shares that rank's record, whatever the backend.
Communicator::Communicator(std::shared_ptr<CommBackend> backend) : backend_(std::move(backend)) {
  if (!backend_ || backend_->shared_record()) return;
  const auto* mine = RankRecord::current();
  const auto rank = static_cast<std::size_t>(backend_->rank());
  backend_->set_record(mine != nullptr ? mine->shared() : std::make_shared<RankRecord>(ranks()[rank], size()));
}

CollectiveCall Communicator::start_call(CollectiveKind kind, const at::Tensor& like) const {
  auto& record = backend().record();
  if (C10_UNLIKELY(!record.belongs_to_this_thread())) {
    throw_wrong_rank(record, std::string(to_string(kind)) + ": a communicator " + describe_group(label(), ranks()));
  }
  CollectiveCall call;
  call.kind = kind;
  call.dtype = like.defined() ? like.scalar_type() : at::kByte;
  call.label = label_;
  call.caller = CallerScope::current();
  call.module = calling_module();
  const bool message = kind == CollectiveKind::send || kind == CollectiveKind::recv;  // the ends are not in step
  const auto* name = NamedCallScope::current();
  const auto& history = name == nullptr ? history_ : *name;
  if (message || !history) return call;
  call.operators = history->operators();
  call.signature = history->signature();
  if (call.signature == 0 && checked_calls()) call.signature = CallHistory::kNone;  // others may have called some
  if (call.signature == 0) {
    const auto numbers = history->numbers().take(backend_.get());
    call.operators = numbers.calls;
    if (numbers.hash != 0) call.signature = numbers.hash | CallHistory::kOfNumbers;
  }
  if (call.signature != 0) call.history = history;
  return call;
}

// Called after the argument checks, so that a call that throws for its arguments does not advance the sequence number.
void Communicator::number(CollectiveCall& call) const {
  call.sequence = backend().next_sequence(call.kind);
  backend().record().note(call.kind, call.sequence, recorded_label_);
}

CommBackend& Communicator::backend() const {
  TORCH_CHECK(backend_ != nullptr,
              "expected a communicator, got an empty one (default-constructed, moved from, or split with color < 0)");
  return *backend_;
}

int Communicator::rank() const { return backend().rank(); }
int Communicator::size() const { return backend().size(); }
const char* Communicator::backend_name() const { return backend().name(); }
const std::vector<std::int64_t>& Communicator::ranks() const { return backend().ranks(); }

Work Communicator::all_gather(at::TensorList outputs, const at::Tensor& input) const {
  return all_gather_list(outputs, input);
}
Work Communicator::reduce_scatter(const at::Tensor& output, at::TensorList inputs, ReduceOp op) const {
  return reduce_scatter_list(output, inputs, op);
}
Work Communicator::all_reduce(const at::Tensor& tensor, ReduceOp op) const { return all_reduce_list(tensor, op); }

Work Communicator::all_reduce(const at::Tensor& output, const at::Tensor& input, ReduceOp op) const {
  if (!all_resolved(input)) return all_reduce(output, resolved(input), op);
  if (!all_resolved(output)) {
    return with_resolved_outputs(*this, output, false, [&](auto out) { return all_reduce(out[0], input, op); });
  }
  auto call = start_call(CollectiveKind::all_reduce, output);
  call.op = op;
  check_tensors(backend(), call, output, input);
  check_same_sizes(call, output, input);
  check_reduction(call);
  number(call);
  mark_outputs_written(output);
  return report(backend(), call, input, 2 * bytes_of(output) * (size() - 1) / size(),
                [&] { return backend().all_reduce(call, output, input); });
}

Work Communicator::all_to_all(at::TensorList outputs, at::TensorList inputs) const {
  if (!all_resolved(inputs)) return all_to_all(outputs, resolved(inputs));
  if (!all_resolved(outputs))
    return with_resolved_outputs(*this, outputs, false, [&](auto out) { return all_to_all(out, inputs); });
  auto call = start_call(CollectiveKind::all_to_all, inputs.empty() ? at::Tensor() : inputs[0]);
  check_list(backend(), call, outputs, "outputs");
  check_list(backend(), call, inputs, "inputs");
  check_tensors(backend(), call, outputs, inputs);
  check_same_sizes(call, outputs[rank()], inputs[rank()]);
  number(call);
  mark_outputs_written(outputs);
  return report(backend(), call, inputs, bytes_received(outputs, rank()),
                [&] { return backend().all_to_all(call, outputs, inputs); });
}

namespace {

using CheckTensor = decltype(&check_input);

// `all` has the tensors of `one` for each member. Tensor k of a gather has its own dtype, equal on all members;
// tensors of a reduction have the call's dtype. Returns the index of this member's first tensor in `all`.
std::size_t check_lists(const CommBackend& backend, const CollectiveCall& call, at::TensorList all, at::TensorList one,
                        CheckTensor check_of_all, CheckTensor check_of_one, const char* what) {
  if (one.size() == 1) check_list(backend, call, all, what);
  TORCH_CHECK(all.size() == one.size() * static_cast<std::size_t>(backend.size()), to_string(call.kind), ": expected ",
              one.size() * static_cast<std::size_t>(backend.size()), ' ', what, " (", one.size(), " tensors of ",
              backend.size(), " ranks), got ", all.size());
  const std::size_t mine = static_cast<std::size_t>(backend.rank()) * one.size();
  for (std::size_t k = 0; k < one.size(); ++k) {
    const auto dtype = call.kind == CollectiveKind::all_gather ? one[k].scalar_type() : call.dtype;
    check_of_one(backend, call, one[k], dtype);
    for (std::size_t i = k; i < all.size(); i += one.size()) check_of_all(backend, call, all[i], dtype);
    check_same_sizes(call, all[mine + k], one[k]);
  }
  check_one_device(call, all, one);
  return mine;
}

std::int64_t bytes_of_list(at::TensorList list) {
  std::int64_t bytes = 0;
  for (const auto& t : list) bytes += bytes_of(t);
  return bytes;
}

}  // namespace

Work Communicator::all_gather_list(at::TensorList outputs, at::TensorList inputs) const {
  TORCH_CHECK(!inputs.empty(), "all_gather: expected at least one tensor, got an empty list");
  if (!all_resolved(inputs)) return all_gather_list(outputs, resolved(inputs));
  if (!all_resolved(outputs)) {
    return with_resolved_outputs(*this, outputs, false, [&](auto out) { return all_gather_list(out, inputs); });
  }
  auto call = start_call(CollectiveKind::all_gather, inputs[0]);
  const auto own = check_lists(backend(), call, outputs, inputs, check_output, check_input, "outputs");
  check_no_overlap(call, outputs, inputs, own);
  number(call);
  mark_outputs_written(outputs);
  return report(backend(), call, inputs, bytes_of_list(outputs) - bytes_of_list(outputs.slice(own, inputs.size())),
                [&] { return backend().all_gather_list(call, outputs, inputs); });
}

Work Communicator::reduce_scatter_list(at::TensorList outputs, at::TensorList inputs, ReduceOp op) const {
  TORCH_CHECK(!outputs.empty(), "reduce_scatter: expected at least one tensor, got an empty list");
  if (!all_resolved(inputs)) return reduce_scatter_list(outputs, resolved(inputs), op);
  if (!all_resolved(outputs)) {
    return with_resolved_outputs(*this, outputs, false, [&](auto out) { return reduce_scatter_list(out, inputs, op); });
  }
  auto call = start_call(CollectiveKind::reduce_scatter, outputs[0]);
  call.op = op;
  check_lists(backend(), call, inputs, outputs, check_input, check_output, "inputs");
  check_no_overlap(call, outputs, inputs, outputs.size());
  check_reduction(call);
  number(call);
  mark_outputs_written(outputs);
  return report(backend(), call, inputs, bytes_of_list(outputs) * (size() - 1),
                [&] { return backend().reduce_scatter_list(call, outputs, inputs); });
}

Work Communicator::all_reduce_list(at::TensorList tensors, ReduceOp op) const {
  TORCH_CHECK(!tensors.empty(), "all_reduce: expected at least one tensor, got an empty list");
  if (!all_resolved(tensors))
    return with_resolved_outputs(*this, tensors, true, [&](auto t) { return all_reduce_list(t, op); });
  auto call = start_call(CollectiveKind::all_reduce, tensors[0]);
  call.op = op;
  check_tensors(backend(), call, tensors, {});
  check_reduction(call);
  number(call);
  mark_outputs_written(tensors);
  return report(backend(), call, tensors, 2 * bytes_of_list(tensors) * (size() - 1) / size(),
                [&] { return backend().all_reduce_list(call, tensors); });
}

at::Tensor Communicator::empty(at::IntArrayRef sizes, at::TensorOptions options) const {
  std::optional<MemoryKindScope> kind;
  if (MemoryKindScope::current() == MemoryKind::activation) kind.emplace(MemoryKind::communication);
  if (options.device().is_cpu()) return pooled_empty(sizes, c10::typeMetaToScalarType(options.dtype()));
  const at::AutoDispatchBelowADInplaceOrView below;
  const NoMeshScopeGuard regular;
  return at::empty(sizes, options);
}

bool Communicator::asynchronous() const { return backend().asynchronous(); }

Work Communicator::broadcast(const at::Tensor& tensor, int root) const {
  if (!all_resolved(tensor)) {
    if (rank() == root) {
      const auto work = broadcast(resolved(tensor), root);
      return mark_outputs_written(tensor), work;
    }
    return with_resolved_outputs(*this, tensor, false, [&](auto t) { return broadcast(t[0], root); });
  }
  auto call = start_call(CollectiveKind::broadcast, tensor);
  call.peer = root;
  check_peer(backend(), call);
  check_tensors(backend(), call, tensor, {});
  number(call);
  mark_outputs_written(tensor);  // on the root too: values cached for the tensor must expire on every rank
  const auto given = rank() == root ? at::TensorList(tensor) : at::TensorList();
  return report(backend(), call, given, rank() == root ? 0 : bytes_of(tensor),
                [&] { return backend().broadcast(call, tensor); });
}

Work Communicator::send(const at::Tensor& tensor, int peer, int tag) const {
  if (!all_resolved(tensor)) return send(resolved(tensor), peer, tag);
  auto call = start_call(CollectiveKind::send, tensor);
  call.peer = peer;
  call.tag = tag;
  check_message(backend(), call);
  check_tensors(backend(), call, {}, tensor);
  number(call);
  return report(backend(), call, tensor, 0, [&] { return backend().send(call, tensor); });
}

Work Communicator::recv(const at::Tensor& tensor, int peer, int tag) const {
  if (!all_resolved(tensor))
    return with_resolved_outputs(*this, tensor, false, [&](auto t) { return recv(t[0], peer, tag); });
  auto call = start_call(CollectiveKind::recv, tensor);
  call.peer = peer;
  call.tag = tag;
  check_message(backend(), call);
  check_tensors(backend(), call, tensor, {});
  number(call);
  mark_outputs_written(tensor);
  return report(backend(), call, {}, bytes_of(tensor), [&] { return backend().recv(call, tensor); });
}

void Communicator::barrier() const {
  auto call = start_call(CollectiveKind::barrier, {});
  number(call);
  report(backend(), call, {}, 0, [&] { return backend().barrier(call), 0; });
}

Communicator Communicator::with_label(std::string label) const {
  Communicator named = *this;
  named.recorded_label_ = label.empty() ? nullptr : &interned_string(label);
  named.label_ = label.empty() ? nullptr : std::make_shared<const std::string>(std::move(label));
  return named;
}

const std::string& Communicator::label() const {
  static const std::string kNone;
  return label_ ? *label_ : kNone;
}

void Communicator::abort(const std::string& reason) const { backend().abort(reason); }

}  // namespace dtensor
