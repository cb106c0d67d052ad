// The strategy of this thread's innermost AttentionStrategyScope, and the names of strategies.
#include <c10/util/Exception.h>

#include "dtensor/attention.h"
#include "internal/scoped_value.h"

namespace dtensor {

AttentionStrategyScope::AttentionStrategyScope(AttentionStrategy strategy)
    : scope_(open_scope(strategy, Recompute::restored)) {}

AttentionStrategy AttentionStrategyScope::current() {
  const auto* scope = ScopedValue<AttentionStrategy>::current();
  return scope == nullptr ? AttentionStrategy::automatic : *scope;
}

const char* to_string(AttentionStrategy strategy) {
  constexpr const char* kNames[] = {"auto", "ring", "gather", "ulysses"};
  return kNames[static_cast<std::size_t>(strategy)];
}

AttentionStrategy parse_attention_strategy(std::string_view name) {
  for (const auto s :
       {AttentionStrategy::automatic, AttentionStrategy::ring, AttentionStrategy::gather, AttentionStrategy::ulysses}) {
    if (name == to_string(s)) return s;
  }
  TORCH_CHECK(false, "expected auto, ring, gather or ulysses as strategy of attention, got '", name, "'");
}

}  // namespace dtensor
