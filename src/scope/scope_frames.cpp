// Frames are entries of ATen's ThreadLocalDebugInfo, which is part of the state that autograd takes from the thread on
// which a pass starts to the threads that run it. An entry is never changed, since several threads may see it: a scope
// that ends before an inner one is marked, and its entry goes when it comes to lie on top.
#include "scope/scope_frames.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <string_view>
#include <type_traits>

namespace dtensor::detail {
namespace {

using DebugInfo = c10::ThreadLocalDebugInfo;

inline constexpr std::string_view kName = "DTENSOR_SCOPES";

// Older releases of LibTorch have a fixed list of kinds, of which programs like this one use none but the profiler's.
template <class Kind>
Kind own_kind() {
  if constexpr (std::is_enum_v<Kind>) {
    return Kind::MOBILE_RUNTIME_INFO;
  } else {
    return Kind(&kName);
  }
}

// Once for the program; volatile, so that it is stored, and no leak checker takes it for lost.
void register_fallthrough() {
  static c10::RegistrationHandleRAII* volatile handle =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
          kObservingScopesKey, c10::KernelFunction::makeFallthrough(), "dtensor: scopes that operators look for"));
  (void)handle;
}

}  // namespace

struct ScopeFrame::State final : c10::DebugInfoBase {
  State(const std::type_info& of_type, std::shared_ptr<const void> of_value, bool is_watched)
      : type(of_type), value(std::move(of_value)), watched(is_watched), below(DebugInfo::current()), outer(top()) {}

  static State* top() {
    auto* info = DebugInfo::get(own_kind<c10::DebugInfoKind>());
    if constexpr (std::is_enum_v<c10::DebugInfoKind>) return dynamic_cast<State*>(info);  // it may be another's
    return static_cast<State*>(info);
  }
  static void mark_thread() {
    bool any = false;
    for (const auto* s = top(); s != nullptr && !any; s = s->outer) any = s->watched && s->open;
    c10::impl::tls_set_dispatch_key_included(kObservingScopesKey, any);
  }
  static void drop_closed() {
    for (auto* s = top(); s != nullptr && !s->open && s->entry.lock() == DebugInfo::current(); s = top()) {
      DebugInfo::_forceCurrentDebugInfo(std::shared_ptr<DebugInfo>(s->below));
    }
  }

  const std::type_info& type;
  const std::shared_ptr<const void> value;
  const bool watched;
  const std::shared_ptr<DebugInfo> below;  // keeps `outer` alive
  State* const outer;
  std::weak_ptr<DebugInfo> entry;
  std::atomic<bool> open{true};
};

ScopeFrame::ScopeFrame(const std::type_info& type, std::shared_ptr<const void> value, bool watched)
    : state_(std::make_shared<State>(type, std::move(value), watched)) {
  if (watched) register_fallthrough();
  DebugInfo::_push(own_kind<c10::DebugInfoKind>(), state_);
  state_->entry = DebugInfo::current();
  State::mark_thread();
}

ScopeFrame::~ScopeFrame() {
  state_->open = false;
  State::drop_closed();
  State::mark_thread();
}

const void* ScopeFrame::innermost(const std::type_info& type) {
  for (const auto* s = State::top(); s != nullptr; s = s->outer) {
    if (s->open && s->type == type) return s->value.get();
  }
  return nullptr;
}

void ScopeFrame::for_each(const std::type_info& type, const std::function<void(const void*)>& visit) {
  const auto kept = DebugInfo::current();  // scopes that end while they are visited
  for (const auto* s = State::top(); s != nullptr; s = s->outer) {
    if (s->open && s->type == type) visit(s->value.get());
  }
}

}  // namespace dtensor::detail
