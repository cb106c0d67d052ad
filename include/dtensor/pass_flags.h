// Flags that hold where a backward pass is started and in all of it, on whatever threads autograd runs it: a device's
// nodes run on a thread of their own, which sees no thread_local of its caller.
#pragma once

#include <cstdint>

#include "dtensor/export.h"

namespace dtensor {

enum class PassFlag : std::uint8_t { no_gradient_sync = 1, no_replica_sync = 2 };

DTENSOR_API bool pass_flag(PassFlag flag);
// Sets it for this thread; the last one that was set is dropped first.
DTENSOR_API void push_pass_flag(PassFlag flag);
DTENSOR_API void pop_pass_flag();

}  // namespace dtensor
