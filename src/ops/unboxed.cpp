// The parts of the unboxed hit path that do not depend on the signature.
#include "ops/unboxed.h"

#include "ops/kernel.h"
#include "scope/scoped_value.h"

namespace dtensor::unboxed {

const CachedCall* find_simple(const OpEntry& entry, const CallView& view) {
  if (scopes_watched() && operators_watched()) return nullptr;
  if (view.has_moved_view) return nullptr;  // the boxed kernel brings it up to date
  return find_unboxable(entry.index, view.key);
}

}  // namespace dtensor::unboxed
