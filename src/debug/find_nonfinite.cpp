// Observes each operator of a pass by a RecordFunction callback: its operands at the start, its results at the end. The
// ranks then agree on the first one. A dispatch mode is not used, because LibTorch has only one and native_kernel uses
// it.
#include "dtensor/debug.h"
#include "internal/aten_scopes.h"

#define FMT_HEADER_ONLY
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "dtensor/tensor.h"
#include "object_collectives/object_collectives.h"
#include "scope/module_scope.h"
#include "sharding_prop/operators/op_info.h"

namespace dtensor {
namespace {

struct Values {
  bool nan = false, infinite = false;
  bool any_tensor = false;  // of any dtype; factory functions have none
  at::Tensor dtensor;       // the first DTensor operand

  void add(double least, double greatest) {
    nan = nan || std::isnan(least) || std::isnan(greatest);
    infinite = infinite || std::isinf(least) || std::isinf(greatest);
  }
};

// This rank's local tensor; undefined on ranks outside the mesh.
at::Tensor local_part(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return tensor.detach();
  const DTensor d(tensor);
  return d.mesh().is_member() ? d.to_local().detach() : at::Tensor();
}

// Whether the tensor is Partial(max) or Partial(min). A rank without elements then has the infinity that is neutral.
bool is_share_of_extreme(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return false;
  const Placements& placements = DTensor(tensor).placements();
  return std::any_of(placements.begin(), placements.end(), [](const Placement& p) {
    return p.is_partial() && (p.reduce_op() == ReduceOp::max || p.reduce_op() == ReduceOp::min);
  });
}

// Identifies a call of an operator; equal on all ranks of the operator's mesh.
std::int64_t name_of_call(const at::RecordFunction& op, const at::Tensor& dtensor) {
  std::string name = op.name();
  for (const std::int64_t rank : DTensor(dtensor).mesh().ranks()) name += " " + std::to_string(rank);
  return static_cast<std::int64_t>(std::hash<std::string>()(name) >> 2) +
         1;  // 0 means an operator on regular tensors, which is local to this rank
}

void inspect(const at::Tensor& tensor, Values& values) {
  if (!tensor.defined()) return;
  values.any_tensor = true;
  if (!values.dtensor.defined() && is_dtensor(tensor)) values.dtensor = tensor;
  at::Tensor local = local_part(tensor);
  if (!local.defined() || local.is_meta() || local.layout() != at::kStrided || local.numel() == 0) return;
  if (local.is_complex()) local = at::view_as_real(local.resolve_conj());
  const auto dtype = local.scalar_type();
  if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kHalf && dtype != at::kBFloat16) return;
  const auto [least, greatest] = at::aminmax(local);  // both are NaN if any element is
  const double from = least.item<double>(), to = greatest.item<double>();
  if (!is_share_of_extreme(tensor) || std::isnan(from)) values.add(from, to);
}

void inspect(const c10::IValue& value, Values& values) {
  if (value.isTensor()) return inspect(value.toTensor(), values);
  if (value.isDouble()) return values.add(value.toDouble(), value.toDouble());
  if (!value.isList() || value.isIntList()) return;
  for (const c10::IValue& item : value.toListRef()) inspect(item, values);
}

std::optional<c10::OperatorHandle> operator_of(const at::RecordFunction& call) {
  const auto name = call.operator_name();
  return name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
}

bool uninitialized_results(const at::RecordFunction& call) {
  const auto op = operator_of(call);
  return op && OpInfo(*op).rule().data().uninitialized_results;
}

// A non-finite value on this rank. `call` counts the operators that the pass called, from 0.
struct SeenValue {
  std::int64_t call = 0;
  std::int64_t name = 0;  // name_of_call()
  NonFiniteReport::Operator what = {};
};

// Findings of one rank for one kind of value, NaN or infinity.
struct Findings {
  std::vector<SeenValue> made;                           // from finite operands, in order of calls
  std::optional<SeenValue> given;                        // the first one with a non-finite operand
  std::unordered_map<std::int64_t, std::int64_t> reads;  // calls with a non-finite operand, and their names

  void add(const SeenValue& seen, bool read, bool put) {
    if (read) reads.emplace(seen.call, seen.name);
    if (!put) return;
    if (!read) made.push_back(seen);
    if (read && !given) given = seen;
  }
};

class NonfiniteRecorder {
 public:
  void add(const at::RecordFunction& op, std::int64_t call, const ModuleAndPhase& place, const Values& read,
           const Values& put) {
    if (!read.any_tensor || (!read.nan && !read.infinite && !put.nan && !put.infinite)) return;
    if ((put.nan || put.infinite) && uninitialized_results(op)) return;
    const std::int64_t name = read.dtensor.defined() ? name_of_call(op, read.dtensor) : 0;
    const SeenValue seen{call, name, {.module = place.module, .op = op.name(), .phase = place.phase}};
    const std::lock_guard lock(mutex_);
    nan_.add(seen, read.nan, put.nan);
    infinite_.add(seen, read.infinite || read.nan, put.infinite);
  }
  std::int64_t next_call() { return calls_++; }
  const Findings& nan() const { return nan_; }
  const Findings& infinite() const { return infinite_; }

 private:
  std::atomic<std::int64_t> calls_ = 0;  // autograd's threads report concurrently
  std::mutex mutex_;
  Findings nan_, infinite_;
};

// In programs without NDEBUG, RecordFunction::inputs() asserts a flag that LibTorch does not set, since it is built
// with NDEBUG. So the private member is read directly, as in sharding_prop/operators/native_kernel.cpp.
template <class Tag, auto Member>
struct Opened {
  friend constexpr auto opened(Tag) { return Member; }
};
struct Inputs {
  friend constexpr auto opened(Inputs);
};
template struct Opened<Inputs, &at::RecordFunction::inputs_>;

// Nesting depth of operators on this thread. Only the outermost operator counts, but a backward pass inside
// aten::_backward starts anew.
struct Depth {
  int pass = -1, operators = 0;
};
thread_local Depth depth;

struct Call final : at::ObserverContext {
  Depth outer;
  bool looks = false;
  std::int64_t number = 0;
  ModuleAndPhase place;
  Values read;
  std::vector<c10::IValue> written;  // operands that an operator without returns writes
};

// The operands that an operator without returns writes, for example many list operators.
std::vector<c10::IValue> written_operands(const at::RecordFunction& call, c10::ArrayRef<const c10::IValue> inputs) {
  const auto op = operator_of(call);
  if (!op || !op->schema().returns().empty()) return {};
  std::vector<c10::IValue> written;
  const auto& arguments = op->schema().arguments();
  for (std::size_t i = 0; i < std::min(arguments.size(), inputs.size()); ++i) {
    if (arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite()) written.push_back(inputs[i]);
  }
  return written;
}

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& op) {
  auto call = std::make_unique<Call>();
  call->outer = depth;
  if (!op.operator_name()) return call;  // autograd nodes also call this
  const int pass = torch::autograd::get_current_graph_task_id();
  depth = {pass, depth.pass == pass ? depth.operators + 1 : 1};
  const auto* watch = ScopedValue<NonfiniteRecorder*>::current();
  call->looks = depth.operators == 1 && watch != nullptr;
  if (!call->looks) return call;
  const at::DisableRecordFunctionGuard own_operators;
  const at::NoGradGuard no_grad;
  call->number = (*watch)->next_call();
  call->place = current_module_and_phase();
  for (const c10::IValue& value : op.*opened(Inputs{})) inspect(value, call->read);
  call->written = written_operands(op, op.*opened(Inputs{}));
  return call;
}

void finish(const at::RecordFunction& op, at::ObserverContext* started) {
  const auto& call = *static_cast<const Call*>(started);
  depth = call.outer;
  const auto* watch = ScopedValue<NonfiniteRecorder*>::current();
  if (!call.looks || watch == nullptr) return;
  const at::DisableRecordFunctionGuard own_operators;
  const at::NoGradGuard no_grad;
  Values put;
  for (const c10::IValue& value : op.outputs()) inspect(value, put);
  for (const c10::IValue& value : call.written) inspect(value, put);
  (*watch)->add(op, call.number, call.place, call.read, put);
}

class ListenerRegistration {
 public:
  ListenerRegistration()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(start, finish)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {}
  ~ListenerRegistration() { at::removeCallback(handle_); }
  ListenerRegistration(const ListenerRegistration&) = delete;
  ListenerRegistration& operator=(const ListenerRegistration&) = delete;

 private:
  at::CallbackHandle handle_;
};

constexpr std::int64_t kNothing = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kRanks = std::int64_t{1} << 20;

std::int64_t over_ranks(const Communicator& ranks, std::int64_t mine, ReduceOp op) {
  const at::Tensor number = at::scalar_tensor(mine, at::kLong);
  ranks.all_reduce(number, op).wait();
  return number.item<std::int64_t>();
}

// The smallest call and its rank over all ranks, in one number; kNothing if no rank has one.
std::int64_t first_order(const Communicator& ranks, const SeenValue* mine) {
  return over_ranks(ranks, mine == nullptr ? kNothing : mine->call * kRanks + ranks.rank(), ReduceOp::min);
}

// Broadcasts the value that rank `first % kRanks` saw.
SeenValue broadcast_seen(const Communicator& ranks, std::int64_t first, const SeenValue* mine) {
  SeenValue seen{first / kRanks, 0, {.rank = static_cast<int>(first % kRanks)}};
  const bool here = ranks.rank() == seen.what.rank;
  seen.name = over_ranks(ranks, here ? mine->name : 0, ReduceOp::max);
  const std::string phase = here && mine->what.phase == Phase::backward ? "b" : "f";
  const auto text =
      broadcast_string(ranks, here ? phase + mine->what.op + "\n" + mine->what.module : "", seen.what.rank);
  const auto line = text.find('\n');
  seen.what.phase = text.front() == 'f' ? Phase::forward : Phase::backward;
  seen.what.op = text.substr(1, line - 1);
  seen.what.module = text.substr(line + 1);
  return seen;
}

// Whether a rank of the operator's mesh had a non-finite operand in the same call, from which the value may originate.
bool originates_on_other_rank(const Communicator& ranks, const SeenValue& seen, const Findings& mine) {
  const auto read = mine.reads.find(seen.call);
  const bool same = seen.name != 0 && read != mine.reads.end() && read->second == seen.name;
  return over_ranks(ranks, same ? 1 : 0, ReduceOp::max) != 0;
}

// The first value made from finite operands on any rank; otherwise, if `also_given`, the first non-finite operand.
std::optional<NonFiniteReport::Operator> first_of_all(const Findings& mine, bool also_given,
                                                      const Communicator& ranks) {
  const auto as_given = [](NonFiniteReport::Operator what) {
    what.from_operand = true;
    return what;
  };
  const SeenValue* given = mine.given && also_given ? &*mine.given : nullptr;
  if (!ranks) {
    if (!mine.made.empty()) return mine.made.front().what;
    return given == nullptr ? std::nullopt : std::optional(as_given(given->what));
  }
  // The collectives below use regular tensors even inside a MeshScope.
  const NoMeshScopeGuard regular;
  for (std::size_t next = 0;;) {
    const SeenValue* made = next < mine.made.size() ? &mine.made[next] : nullptr;
    const std::int64_t first = first_order(ranks, made);
    if (first == kNothing) break;
    const SeenValue seen = broadcast_seen(ranks, first, made);
    if (!originates_on_other_rank(ranks, seen, mine)) return seen.what;
    while (next < mine.made.size() && mine.made[next].call <= seen.call && mine.made[next].name == seen.name) ++next;
  }
  const std::int64_t first = first_order(ranks, given);
  if (first == kNothing) return std::nullopt;
  return as_given(broadcast_seen(ranks, first, given).what);
}

std::string nonfinite_name(double value) { return std::isnan(value) ? "NaN" : value > 0 ? "inf" : "-inf"; }

}  // namespace

std::string NonFiniteReport::Operator::str() const {
  return fmt::format("{}, {}, by {} on rank {}", module.empty() ? "outside any module" : "in " + module,
                     phase == Phase::forward ? "forward" : "backward", op, rank);
}

std::string NonFiniteReport::str() const {
  if (!nan && !infinite) return "a second pass over the same batch had finite values only";
  const auto infinite_text = infinite ? "infinite values first " + infinite->str() : std::string();
  if (!nan) return infinite_text;
  const auto text = (nan->from_operand ? "NaN was there already, first read " : "NaN first ") + nan->str();
  return infinite ? text + "; " + infinite_text : text;
}

NonFiniteReport find_nonfinite(const std::function<void()>& pass, const Communicator& ranks) {
  NonfiniteRecorder watch;
  {
    const NodeRecorder modules;
    const ScopedValue<NonfiniteRecorder*> watching(&watch, Recompute::unchanged);
    const ListenerRegistration listening;
    pass();
  }
  return {.nan = first_of_all(watch.nan(), /*also_given=*/true, ranks),
          .infinite = first_of_all(watch.infinite(), /*also_given=*/false, ranks)};
}

void check_step_finite(const NonFiniteError::Step& numbers, const std::function<void()>& pass,
                       const Communicator& ranks) {
  const bool loss_ends = !std::isfinite(numbers.loss);
  if (!loss_ends && std::isfinite(numbers.gradient_norm)) return;
  const auto what = loss_ends ? "the loss is " + nonfinite_name(numbers.loss)
                              : "the norm of the gradients is " + nonfinite_name(numbers.gradient_norm);
  throw NonFiniteError(
      fmt::format("step {}: {}: {}. No parameter was changed.", numbers.step, what, find_nonfinite(pass, ranks).str()));
}

}  // namespace dtensor
