// Steps that the boxed and the unboxed kernel share after the local operator.
#include "ops/cache/cached_call.h"

namespace dtensor {

void bump_versions(const CachedCall& call, c10::ArrayRef<c10::TensorImpl*> operands) {
  const bool returned = !call.outputs.empty();
  for (const auto i : call.written) {
    if (!returned) advance_version(*operands[i]);
    if (!has_dtensor_key(operands[i])) continue;
    const auto& tensor = *as_dtensor(operands[i]);
    const bool counts = tensor.local().defined() && tensor.local().unsafeGetTensorImpl()->version_counter().enabled();
    // Inline for tensors with a version counter, because a list may hold hundreds.
    counts ? tensor.local().unsafeGetTensorImpl()->bump_version() : bump_local_version(tensor);
  }
}

void throw_wrong_local_sizes(const OpEntry& entry, const CachedCall& call, const TensorSpec& spec,
                             const at::Tensor& local) {
  TORCH_CHECK(false, entry.name(), ": got a local result of sizes ", local.sizes(), ", but ", spec.str(), " requires [",
              c10::Join(", ", spec.local_sizes), "]: its sharding rule is wrong (", call.decision.why, ")");
}

}  // namespace dtensor
