// The parts of the unboxed hit path that do not depend on the signature.
#include "ops/unboxed.h"

#include "ops/kernel.h"
#include "scope/scoped_value.h"

namespace dtensor::unboxed {

const CachedCall* find_simple(const OpEntry& entry, const CallView& view) {
  if (view.mesh == nullptr || view.has_stored()) return nullptr;
  if (scopes_watched() && operators_watched()) return nullptr;
  if (view.has_plain) return nullptr;  // the boxed kernel counts such calls and compares the operands
  for (auto* impl : view.operands) {
    if (impl == nullptr || !has_dtensor_key(impl)) continue;
    if (as_dtensor(impl)->is_detached_view()) return nullptr;
    watch_leaf(*as_dtensor(impl));
  }
  const auto* call = cache_find_hit(entry.index, view.key);
  return call != nullptr && call->unboxable ? call : nullptr;
}

}  // namespace dtensor::unboxed
