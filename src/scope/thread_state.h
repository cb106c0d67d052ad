// The thread-local state that every operator reads, in one variable. In a shared library each access to a thread-local
// variable is a function call. So a cached call accesses it once and passes the pointer on.
#pragma once

#include <string>

#include "scope/free_blocks.h"

namespace dtensor {

class CollectiveTag;
class ModuleScope;
class RankRecord;
struct ThreadCache;

// What this thread runs, for errors, events, and collectives of ranks that disagree.
struct CallContext {
  const std::string* caller = nullptr;  // outermost operator or function of the library (comm/record/caller.h)
  const CollectiveTag* tag = nullptr;   // innermost tag (dtensor/events.h)
  const ModuleScope* module = nullptr;  // innermost scope (dtensor/debug.h)
};

struct ThreadState {
  // The rank of this thread (comm/record/rank_record.h); null if it is not a thread rank.
  const RankRecord* rank = nullptr;
  ThreadCache* cache = nullptr;     // the decision cache of this thread (ops/cache/decision_cache.h); null if empty
  FreeListAllocator tensor_memory;  // of DTensorImpls
  CallContext call;
};

namespace detail {
inline constinit thread_local ThreadState thread_state;
}

// The asm statement hides the origin of the address. Otherwise the compiler would access the thread-local variable
// again instead of spilling its address.
inline ThreadState& thread_state() {
  auto* state = &detail::thread_state;
  asm("" : "+r"(state));
  return *state;
}

}  // namespace dtensor
