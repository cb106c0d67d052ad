// Listens where ATen's profiler would, to each operator that a pass calls: its operands as it starts, its results as it
// ends. Ranks then agree whose came first. Rejected: a dispatch mode, of which LibTorch has one to give
// (native_kernel).
#include "dtensor/find_nonfinite.h"

#define FMT_HEADER_ONLY
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>

#include "dtensor/tensor.h"
#include "scope/module_scope.h"
#include "sharding_prop/op_info.h"
#include "texts/texts.h"

namespace dtensor {
namespace {

struct Values {
  bool nan = false, infinite = false;
  bool any_tensor = false;  // of any dtype: a factory has none

  void add(double least, double greatest) {
    nan = nan || std::isnan(least) || std::isnan(greatest);
    infinite = infinite || std::isinf(least) || std::isinf(greatest);
  }
};

// This rank's part; undefined where it has none.
at::Tensor local_part(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return tensor.detach();
  const DTensor d(tensor);
  return d.mesh().is_member() ? d.to_local().detach() : at::Tensor();
}

void look_at(const at::Tensor& tensor, Values& values) {
  if (!tensor.defined()) return;
  values.any_tensor = true;
  at::Tensor local = local_part(tensor);
  if (!local.defined() || local.is_meta() || local.layout() != at::kStrided || local.numel() == 0) return;
  if (local.is_complex()) local = at::view_as_real(local.resolve_conj());
  const auto dtype = local.scalar_type();
  if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kHalf && dtype != at::kBFloat16) return;
  const auto [least, greatest] = at::aminmax(local);  // either is NaN where any element is
  values.add(least.item<double>(), greatest.item<double>());
}

void look_at(const c10::IValue& value, Values& values) {
  if (value.isTensor()) return look_at(value.toTensor(), values);
  if (value.isDouble()) return values.add(value.toDouble(), value.toDouble());
  if (!value.isList() || value.isIntList()) return;
  for (const c10::IValue& item : value.toListRef()) look_at(item, values);
}

bool leaves_memory(const at::RecordFunction& call) {
  const auto name = call.operator_name();
  const auto op = name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
  return op && OpInfo(*op).rule().data().leaves_memory;
}

// What this rank saw first. `call` counts the operators that the pass called, from 0; -1: nothing seen.
struct Seen {
  std::int64_t call = -1;
  NonFinite what = {};
};

class Watch {
 public:
  void add(const at::RecordFunction& op, std::int64_t call, const Place& place, const Values& read, const Values& put) {
    const std::lock_guard lock(mutex_);
    const bool begins_nan = put.nan && read.any_tensor && better(nan_, read.nan);
    const bool begins_infinite =
        put.infinite && read.any_tensor && !read.infinite && !read.nan && better(infinite_, false);
    if ((!begins_nan && !begins_infinite) || leaves_memory(op)) return;
    const NonFinite what{.module = place.module, .op = op.name(), .phase = place.phase, .given = read.nan};
    if (begins_nan) nan_ = {call, what};
    if (begins_infinite) infinite_ = {call, what};
  }
  std::int64_t next_call() { return calls_++; }
  const Seen& nan() const { return nan_; }
  const Seen& infinite() const { return infinite_; }

 private:
  // The first counts; one that made it comes before all that were given it.
  static bool better(const Seen& now, bool given) { return now.call < 0 || (now.what.given && !given); }

  std::atomic<std::int64_t> calls_ = 0;  // autograd's threads tell of their part of a pass at the same time
  std::mutex mutex_;
  Seen nan_, infinite_;
};

// RecordFunction::inputs() says in a program without NDEBUG that it is called outside a callback, since LibTorch itself
// is built with it and sets no such flag. What it would return, as in sharding_prop/native_kernel.cpp.
template <class Tag, auto Member>
struct Opened {
  friend constexpr auto opened(Tag) { return Member; }
};
struct Inputs {
  friend constexpr auto opened(Inputs);
};
template struct Opened<Inputs, &at::RecordFunction::inputs_>;

// How deep in operators this thread is: those inside of another are its own affair, but not a backward pass inside of
// aten::_backward.
struct Depth {
  int pass = -1, operators = 0;
};
thread_local Depth depth;

struct Call final : at::ObserverContext {
  Depth outer;
  bool looks = false;
  std::int64_t number = 0;
  Place place;
  Values read;
};

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& op) {
  auto call = std::make_unique<Call>();
  call->outer = depth;
  if (!op.operator_name()) return call;  // autograd tells of its nodes, too
  const int pass = torch::autograd::get_current_graph_task_id();
  depth = {pass, depth.pass == pass ? depth.operators + 1 : 1};
  const auto* watch = ScopedValue<Watch*>::current();
  call->looks = depth.operators == 1 && watch != nullptr;
  if (!call->looks) return call;
  const at::DisableRecordFunctionGuard own_operators;
  const at::NoGradGuard no_grad;
  call->number = (*watch)->next_call();
  call->place = current_place();
  for (const c10::IValue& value : op.*opened(Inputs{})) look_at(value, call->read);
  return call;
}

void finish(const at::RecordFunction& op, at::ObserverContext* started) {
  const auto& call = *static_cast<const Call*>(started);
  depth = call.outer;
  const auto* watch = ScopedValue<Watch*>::current();
  if (!call.looks || watch == nullptr) return;
  const at::DisableRecordFunctionGuard own_operators;
  const at::NoGradGuard no_grad;
  Values put;
  for (const c10::IValue& value : op.outputs()) look_at(value, put);
  (*watch)->add(op, call.number, call.place, call.read, put);
}

class Listening {
 public:
  Listening()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(start, finish)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {}
  ~Listening() { at::removeCallback(handle_); }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

 private:
  at::CallbackHandle handle_;
};

constexpr std::int64_t kNothing = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kRanks = std::int64_t{1} << 20, kGiven = std::int64_t{1} << 62;

// The smaller, the sooner: those that were given it last, then by calls, then by rank.
std::int64_t order_of(const Seen& seen, int rank) {
  if (seen.call < 0) return kNothing;
  return (seen.what.given ? kGiven : 0) + seen.call * kRanks + rank;
}

std::optional<NonFinite> first_of_all(const Seen& seen, const Communicator& ranks) {
  if (!ranks) return seen.call < 0 ? std::nullopt : std::optional(seen.what);
  const at::Tensor order = at::scalar_tensor(order_of(seen, ranks.rank()), at::kLong);
  ranks.all_reduce(order, ReduceOp::min).wait();
  const auto first = order.item<std::int64_t>();
  if (first == kNothing) return std::nullopt;
  NonFinite what{.rank = static_cast<int>(first % kRanks), .given = first >= kGiven};
  const char* phase = seen.what.phase == Phase::forward ? "f" : "b";
  const auto text = broadcast_text(ranks, phase + seen.what.op + "\n" + seen.what.module, what.rank);
  const auto line = text.find('\n');
  what.phase = text.front() == 'f' ? Phase::forward : Phase::backward;
  what.op = text.substr(1, line - 1);
  what.module = text.substr(line + 1);
  return what;
}

std::string words_of(double value) { return std::isnan(value) ? "NaN" : value > 0 ? "inf" : "-inf"; }

}  // namespace

std::string NonFinite::str() const {
  return fmt::format("{}, {}, by {} on rank {}", module.empty() ? "outside any module" : "in " + module,
                     phase == Phase::forward ? "forward" : "backward", op, rank);
}

std::string NonFiniteReport::str() const {
  if (!nan && !infinite) return "a second pass over the same batch had finite values only";
  const auto infinite_text = infinite ? "infinite values first " + infinite->str() : std::string();
  if (!nan) return infinite_text;
  const auto text = (nan->given ? "NaN was there already, first read " : "NaN first ") + nan->str();
  return infinite ? text + "; " + infinite_text : text;
}

NonFiniteReport find_nonfinite(const std::function<void()>& pass, const Communicator& ranks) {
  Watch watch;
  {
    const NodeRecorder modules;
    const ScopedValue<Watch*> watching(&watch);
    const Listening listening;
    pass();
  }
  return {.nan = first_of_all(watch.nan(), ranks), .infinite = first_of_all(watch.infinite(), ranks)};
}

void check_step_finite(const StepNumbers& numbers, const std::function<void()>& pass, const Communicator& ranks) {
  const bool loss_ends = !std::isfinite(numbers.loss);
  if (!loss_ends && std::isfinite(numbers.gradient_norm)) return;
  const auto what = loss_ends ? "the loss is " + words_of(numbers.loss)
                              : "the norm of the gradients is " + words_of(numbers.gradient_norm);
  throw NonFiniteError(
      fmt::format("step {}: {}: {}. No parameter was changed.", numbers.step, what, find_nonfinite(pass, ranks).str()));
}

}  // namespace dtensor
