// The parts of the unboxed hit path that do not depend on the signature.
#include "ops/unboxed.h"

#include "ops/kernel.h"
#include "scope/scoped_value.h"

namespace dtensor::unboxed {

const CachedCall* find_simple(const OpEntry& entry, const CallView& view) {
  if (scopes_watched() && operators_watched()) return nullptr;
  if (view.has_moved_view) return nullptr;  // the boxed kernel brings it up to date
  const auto* call = cache_find_hit(entry.index, view.key);
  return call != nullptr && call->unboxable ? call : nullptr;
}

}  // namespace dtensor::unboxed
