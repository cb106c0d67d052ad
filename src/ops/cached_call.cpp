// What both ways of running a cached call, boxed and unboxed, do after the local operator.
#include "ops/cached_call.h"

namespace dtensor {

void bump_versions(const CachedCall& call, const CallView& view) {
  for (const auto i : call.written) {
    if (has_dtensor_key(view.operands[i])) count_local_write(*as_dtensor(view.operands[i]));
  }
}

void check_local_sizes(const OpEntry& entry, const CachedCall& call, const TensorSpec& spec, const at::Tensor& local) {
  TORCH_CHECK(local.sizes().equals(spec.local_sizes), entry.name(), ": the local result has sizes ", local.sizes(),
              " where ", spec.str(), " asks for [", c10::Join(", ", spec.local_sizes),
              "]: its sharding rule is wrong (", call.decision.why, ")");
}

}  // namespace dtensor
