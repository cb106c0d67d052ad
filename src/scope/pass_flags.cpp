// The flags are kept in ATen's ThreadLocalDebugInfo, which is part of the state that autograd takes from the thread on
// which a pass starts to the threads that run it.
#include "dtensor/pass_flags.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <deque>
#include <memory>
#include <string_view>
#include <type_traits>

namespace dtensor {
namespace {

struct Flags final : c10::DebugInfoBase {
  explicit Flags(std::uint8_t set) : bits(set) {}
  const std::uint8_t bits;
};

inline constexpr std::string_view kName = "DTENSOR_PASS_FLAGS";

// Older releases of LibTorch have a fixed list of kinds, of which programs like this one use none but the profiler's.
template <class Kind>
Kind own_kind() {
  if constexpr (std::is_enum_v<Kind>) {
    return Kind::MOBILE_RUNTIME_INFO;
  } else {
    return Kind(&kName);
  }
}

std::uint8_t bits() {
  const auto* flags = dynamic_cast<const Flags*>(c10::ThreadLocalDebugInfo::get(own_kind<c10::DebugInfoKind>()));
  return flags == nullptr ? 0 : flags->bits;
}

std::deque<c10::DebugInfoGuard>& guards() {
  static thread_local std::deque<c10::DebugInfoGuard> stack;
  return stack;
}

}  // namespace

bool pass_flag(PassFlag flag) { return (bits() & static_cast<std::uint8_t>(flag)) != 0; }

void push_pass_flag(PassFlag flag) {
  const auto all = static_cast<std::uint8_t>(bits() | static_cast<std::uint8_t>(flag));
  guards().emplace_back(own_kind<c10::DebugInfoKind>(), std::make_shared<Flags>(all));
}

void pop_pass_flag() { guards().pop_back(); }

}  // namespace dtensor
