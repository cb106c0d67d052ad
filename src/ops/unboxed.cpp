// The parts of the unboxed hit path that do not depend on the signature.
#include "ops/unboxed.h"

namespace dtensor::unboxed {

const CachedCall* find_simple(const OpEntry& entry, const CallView& view) {
  if (view.mesh == nullptr || events_on() || recording_explanations() || backward_listeners_on()) return nullptr;
  if (view.has_plain && (checked_mode() || strict_mode())) return nullptr;
  for (auto* impl : view.operands) {
    if (impl == nullptr || !has_dtensor_key(impl)) continue;
    if (as_dtensor(impl)->is_detached_view()) return nullptr;
    watch_leaf(*as_dtensor(impl));
  }
  const auto* call = cache_find_hit(entry.index, view.key);
  return call != nullptr && call->unboxable ? call : nullptr;
}

void bump_versions(const CachedCall& call, const CallView& view) {
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.inputs[i].mutated || view.operands[i] == nullptr || !has_dtensor_key(view.operands[i])) continue;
    const auto& local = as_dtensor(view.operands[i])->local();
    if (!local.is_inference()) local.unsafeGetTensorImpl()->bump_version();
  }
}

void check_result(const OpEntry& entry, const CachedCall& call, const TensorSpec& spec, const at::Tensor& local) {
  TORCH_CHECK(local.sizes().equals(spec.local_sizes), entry.op.operator_name(), ": the local result has sizes ",
              local.sizes(), " where ", spec.str(), " asks for [", c10::Join(", ", spec.local_sizes),
              "]: its sharding rule is wrong (", call.decision.why, ")");
}

}  // namespace dtensor::unboxed
