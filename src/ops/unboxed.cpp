// The parts of the unboxed hit path that do not depend on the signature.
#include "ops/unboxed.h"

#include "ops/kernel.h"
#include "scope/scoped_value.h"

namespace dtensor::unboxed {

const CachedCall* find_simple(const OpEntry& entry, const CallView& view) {
  if (view.mesh == nullptr || view.has_stored()) return nullptr;
  if (scopes_watched() && operators_watched()) return nullptr;
  // The boxed kernel counts and compares plain operands, and brings moved views up to date.
  if (view.has_plain || view.has_moved_view) return nullptr;
  const auto* call = cache_find_hit(entry.index, view.key);
  return call != nullptr && call->unboxable ? call : nullptr;
}

}  // namespace dtensor::unboxed
