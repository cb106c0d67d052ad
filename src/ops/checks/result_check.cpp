// Compares replicas across ranks, and full results with ATen's. It gathers tensors by redistribution.
#include "ops/checks/result_check.h"

#include <ATen/ATen.h>

#include "autograd/materialized_view.h"
#include "mesh/content_hash.h"
#include "ops/checks/regular_operand.h"
#include "ops/dispatch/for_each_tensor.h"

namespace dtensor {
namespace {

using torch::jit::Stack;

c10::IValue full_argument(const c10::IValue& value, bool written) {
  const auto own = [&](const at::Tensor& t) { return written && t.defined() ? full_value(t).clone() : full_value(t); };
  if (value.isTensor()) return own(value.toTensor());
  if (!value.isList()) return value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& tensor : value.toTensorVector()) list.push_back(own(tensor));
    return list;
  }
  if (value.toList().elementType()->kind() != c10::TypeKind::OptionalType) return value;
  c10::List<std::optional<at::Tensor>> list;
  for (const auto& item : value.toListRef()) {
    list.push_back(item.isTensor() ? std::optional(own(item.toTensor())) : std::nullopt);
  }
  return list;
}

// Relative tolerance for sums in a different order. A wrong rule causes larger differences.
double tolerance(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
    case at::kComplexDouble:
      return 1e-6;
    case at::kFloat:
    case at::kComplexFloat:
      return 1e-3;
    default:
      return isFloatingType(type) ? 0.1 : 0;
  }
}

// Compares elements that are finite in both, relative to the largest value.
bool are_close(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return true;
  if (a.layout() != at::kStrided) return are_close(a.to_dense(), b.to_dense());
  const auto type = at::isComplexType(a.scalar_type()) ? at::kComplexDouble : at::kDouble;
  const auto x = a.to(type), y = b.to(a.device(), type);
  const auto finite = x.isfinite().logical_and(y.isfinite());
  const auto off = at::where(finite, (x - y).abs(), 0).max().item<double>();
  return off <= tolerance(a.scalar_type()) * (1 + at::where(finite, y.abs(), 0).max().item<double>());
}

// Whether the operator can run again on full operands: one mesh, and a deterministic operator.
bool is_comparable(const OpEntry& entry, const CallOperands& operands) {
  return !operands.mixed && !operands.has_host_operand() && !entry.foreach_op() && !entry.is_random &&
         !entry.inplace_view;
}

}  // namespace

ResultCheck::ResultCheck(const OpEntry& entry, const CachedCall& call, const CallOperands& operands, const Stack& stack)
    : entry_(entry), call_(call), content_counts_(!entry.rule().data().uninitialized_results) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto first = stack.size() - entry.args.size();
  if (call.executor == Executor::outside || !content_counts_) return;
  for (std::size_t i = 0; i < entry.args.size() && !entry.gives_view; ++i) {
    if (entry.args[i].mutated || entry.args[i].kind == ArgKind::other) continue;  // may be uninitialized
    if (entry.is_unread(i, torch::jit::last(stack, entry.args.size()))) continue;
    const auto what = c10::str(entry.name(), ": operand `", entry.schema().arguments()[i].name(), "`");
    for_each_tensor(stack[first + i], [&](const at::Tensor& tensor) { check_replicas(what, tensor); });
  }
  if (!is_comparable(entry, operands) || !should_sample_call(entry, operands)) return;
  for (std::size_t i = 0; i < entry.args.size(); ++i) {
    full_arguments_.push_back(full_argument(stack[first + i], entry.args[i].mutated));
  }
}

void ResultCheck::compare(const Stack& stack) const {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto count = entry_.returns.size(), first = stack.size() - count;
  if (call_.executor == Executor::outside || !content_counts_) return;
  const bool fresh = !entry_.gives_view && !entry_.mutates;  // others may be memory that the program fills later
  for (std::size_t r = 0; r < count && fresh; ++r) {
    const auto what = c10::str(entry_.name(), ": result ", r);
    for_each_tensor(stack[first + r], [&](const at::Tensor& tensor) { check_replicas(what, tensor); });
  }
  if (full_arguments_.empty()) return;
  auto expected = full_arguments_;
  try {
    entry_.op.callBoxed(expected);
  } catch (const c10::Error&) {
    return;  // one device rejects the call too
  }
  const auto reported = entry_.rule().data().saved_for_backward ? std::min<std::size_t>(count, 1) : count;
  for (std::size_t r = 0; r < reported; ++r) compare_full(c10::str("result ", r), stack[first + r], expected[r]);
}

void check_replicas(const std::string& what, const at::Tensor& tensor) {
  auto* impl = dtensor_or_null(tensor);
  if (impl == nullptr || is_device_copy(*impl) || !impl->spec()->mesh->is_member) return;
  const auto& spec = *impl->spec();
  const auto axes = spec.replicated_axes();
  if (axes == 0 || tensor.is_meta()) return;
  check_equal_across_ranks(as_mesh_impl(*spec.mesh), axes, up_to_date_local(*impl),
                           c10::str(what, ", ", spec.str(),
                                    ", is labeled Replicate but differs between ranks. Use the placement that "
                                    "the local tensors have (from_local with Shard or Partial), or fix the rule"));
}

void check_parts(const std::string& what, const at::Tensor& actual, const at::Tensor& expected,
                 const std::string& why) {
  const auto parts = full_value(actual);
  TORCH_CHECK(parts.sizes() == expected.sizes() && are_close(parts, expected), what,
              ", gathered from all ranks, differs from the unsharded computation: ", why);
}

void ResultCheck::compare_full(const std::string& what, const c10::IValue& actual, const c10::IValue& expected) const {
  const auto rule =
      c10::str(" differs from the unsharded computation: the sharding rule is wrong (", call_.decision.why, ")");
  if (actual.isBool() || actual.isInt()) {
    TORCH_CHECK(actual == expected, entry_.name(), ": the number ", actual, rule, "; expected ", expected);
  }
  std::vector<at::Tensor> full_tensors;
  for_each_tensor(expected, [&](const at::Tensor& tensor) { full_tensors.push_back(tensor); });
  std::size_t next = 0;
  const bool indices = expected.isTensor() && !expected.toTensor().is_floating_point() &&
                       entry_.returns.size() > 1;  // the index among equal values may differ
  for_each_tensor(actual, [&](const at::Tensor& tensor) {
    const auto& full = full_tensors.at(next++);
    const auto parts = full_value(tensor);
    TORCH_CHECK(parts.sizes() == full.sizes() && (indices || are_close(parts, full)), entry_.name(), ": ", what,
                ", gathered from all ranks,", rule);
  });
}

}  // namespace dtensor
