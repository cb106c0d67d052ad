// Frames are entries of ATen's ThreadLocalDebugInfo, which autograd copies from the thread that starts a backward pass
// to the threads that run it. Several threads may share an entry, so entries are immutable. A scope that ends before an
// inner one is only marked; its entry is removed once it is on top.
#include "scope/scope_frames.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <type_traits>

#include "scope/scope_snapshot.h"

namespace dtensor::detail {
namespace {

using DebugInfo = c10::ThreadLocalDebugInfo;

inline constexpr std::string_view kName = "DTENSOR_SCOPES";

// Older LibTorch releases have a fixed list of kinds. MOBILE_RUNTIME_INFO is unused outside mobile builds.
template <class Kind>
Kind own_kind() {
  if constexpr (std::is_enum_v<Kind>) {
    return Kind::MOBILE_RUNTIME_INFO;
  } else {
    return Kind(&kName);
  }
}

// Registers the fallthrough kernel once. The handle is volatile so that it is stored and leak checkers find it.
void register_fallthrough() {
  static c10::RegistrationHandleRAII* volatile handle =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
          kOperatorScopesKey, c10::KernelFunction::makeFallthrough(), "dtensor: scopes that operators look for"));
  (void)handle;
}

}  // namespace

struct ScopeFrame::State final : c10::DebugInfoBase {
  State(const Kind& of_kind, std::shared_ptr<const void> of_value)
      : kind(of_kind), value(std::move(of_value)), below(DebugInfo::current()), outer(top()) {}

  static State* top() {
    auto* info = DebugInfo::get(own_kind<c10::DebugInfoKind>());
    // the entry may belong to other code
    if constexpr (std::is_enum_v<c10::DebugInfoKind>) return dynamic_cast<State*>(info);
    return static_cast<State*>(info);
  }
  static void mark_thread() {
    bool any = false;
    for (const auto* s = top(); s != nullptr && !any; s = s->outer)
      any = s->kind.operators == OperatorScope::yes && s->open;
    c10::impl::tls_set_dispatch_key_included(kOperatorScopesKey, any);
  }
  static void drop_closed() {
    for (auto* s = top(); s != nullptr && !s->open && s->entry.lock() == DebugInfo::current(); s = top()) {
      DebugInfo::_forceCurrentDebugInfo(std::shared_ptr<DebugInfo>(s->below));
    }
  }

  const Kind kind;
  const std::shared_ptr<const void> value;  // null: hides the frames around it
  const std::shared_ptr<DebugInfo> below;   // keeps `outer` alive
  State* const outer;
  std::weak_ptr<DebugInfo> entry;
  std::atomic<bool> open{true};
};

ScopeFrame::ScopeFrame(const Kind& kind, std::shared_ptr<const void> value)
    : state_(std::make_shared<State>(kind, std::move(value))) {
  if (kind.operators == OperatorScope::yes) register_fallthrough();
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
    if (s->open && s->kind.type == type) return s->value.get();
  }
  return nullptr;
}

void ScopeFrame::for_each(const std::type_info& type, const std::function<void(const void*)>& visit) {
  const auto kept = DebugInfo::current();  // keeps scopes alive that end during the visit
  for (const auto* s = State::top(); s != nullptr; s = s->outer) {
    if (!s->open || s->kind.type != type) continue;
    if (s->value == nullptr) return;
    visit(s->value.get());
  }
}

}  // namespace dtensor::detail

namespace dtensor {

ScopeSnapshot ScopeSnapshot::current() {
  ScopeSnapshot snapshot;
  auto& entries = snapshot.entries_;
  for (const auto* s = detail::ScopeFrame::State::top(); s != nullptr; s = s->outer) {
    if (!s->open || s->kind.recompute != Recompute::restored) continue;
    const auto is_outer = [&](const Entry& inner) { return inner.kind.type == s->kind.type; };
    if (std::none_of(entries.begin(), entries.end(), is_outer)) entries.push_back({s->kind, s->value});
  }
  return snapshot;
}

std::shared_ptr<const void> ScopeSnapshot::open(const Entry& entry) {
  if (entry.kind.reopen != nullptr) return entry.kind.reopen(entry.value);
  return std::make_shared<const detail::ScopeFrame>(entry.kind, entry.value);
}

ScopeSnapshot::Restore::Restore(const ScopeSnapshot& snapshot) {
  for (const Entry& now : current().entries_) {
    const auto has_type = [&](const Entry& entry) { return entry.kind.type == now.kind.type; };
    const auto& entries = snapshot.entries_;
    if (std::none_of(entries.begin(), entries.end(), has_type)) scopes_.push_back(open({now.kind, nullptr}));
  }
  for (const Entry& entry : snapshot.entries_) scopes_.push_back(open(entry));
}

}  // namespace dtensor
