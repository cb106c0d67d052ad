// What every operator asks of its thread, in one variable: a look at a variable of a thread is a call where the library
// is a shared one (4 ns, of the 190 that an operator costs over plain ATen), so the way of a cached call looks once and
// hands on what it got.
#pragma once

#include "scope/free_blocks.h"

namespace dtensor {

class RankRecord;
struct ThreadCache;

struct ThreadState {
  const RankRecord* rank =
      nullptr;                   // which rank this thread is (comm/record/rank_record.h); null: none of a thread rank's
  ThreadCache* cache = nullptr;  // the decisions made on it (ops/cache/decision_cache.h); null: none yet
  FreeListAllocator tensors;     // memory of DTensorImpls
};

namespace detail {
inline constinit thread_local ThreadState thread_state;
}

// The compiler would look the variable up again wherever it has no register left for its address, so it is not told
// what the address is of.
inline ThreadState& thread_state() {
  auto* state = &detail::thread_state;
  asm("" : "+r"(state));
  return *state;
}

}  // namespace dtensor
