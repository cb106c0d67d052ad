// scaled_dot_product_attention, which autograd would otherwise decompose, and dtensor::attention(). On sharded
// sequences both run context-parallel algorithms (src/attention).
#include "dtensor/attention.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>

#include <mutex>

#include "attention/dtensor_attention.h"
#include "comm/event_listeners.h"
#include "comm/record/caller.h"
#include "internal/aten_scopes.h"
#include "internal/bit_identical.h"
#include "internal/dispatch_modes.h"
#include "ops/checks/explain.h"
#include "ops/checks/inspect_state.h"
#include "ops/checks/regular_operand.h"
#include "ops/execute/selective_checkpoint.h"
#include "ops/local_kernels/special/attention_check.h"
#include "ops/local_kernels/special/special_kernel.h"

namespace dtensor {
namespace {

using attention_impl::attend;
using attention_impl::CachedForward;

// The common mesh of the tensors, otherwise null.
const MeshInfo* one_mesh(std::initializer_list<const at::Tensor*> tensors) {
  const MeshInfo* mesh = nullptr;
  for (const auto* t : tensors) {
    const auto* impl = t->defined() ? dtensor_or_null(*t) : nullptr;
    if (impl == nullptr) continue;
    const auto* its = impl->spec()->mesh.get();
    if (mesh != nullptr && mesh != its) return nullptr;
    mesh = its;
  }
  return mesh != nullptr && mesh->compute_mesh() == nullptr ? mesh : nullptr;
}

// The context-parallel algorithms need the log-sum-exp of a flash kernel. Without one, the kernels' rules gather keys.
bool has_kernel(const MeshInfo& mesh, const at::Tensor& q, const at::Tensor& v) {
  return mesh.device == c10::kCPU || (mesh.device == c10::kCUDA && attention_impl::has_flash_kernel(q, v));
}

const OpEntry& entry_of_attention() {
  static const OpEntry& entry =
      entry_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::scaled_dot_product_attention", ""));
  return entry;
}

// The arguments of ATen's operator. `mask` may be another operand of the options.
std::vector<c10::IValue> call_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& mask) {
  return {q, k, v, mask.defined() ? c10::IValue(mask) : c10::IValue(), 0.0, false, c10::IValue(), false};
}

void check_regular_tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask) {
  const auto args = call_of(q, k, v, mask);
  const CallOperands operands(entry_of_attention(), args);
  if (operands.has_regular) check_regular_operands(entry_of_attention(), args, operands);
}

// The checks of checked mode, on members of the mesh.
std::optional<AttentionCheck> check_before(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                           const AttentionOptions& options) {
  if (C10_LIKELY(!checked_values())) return std::nullopt;
  const auto args = call_of(q, k, v, options.mask);
  const CallOperands operands(entry_of_attention(), args);
  if (!operands.mesh->is_member) return std::nullopt;
  return AttentionCheck(q, k, v, options, should_sample_call(entry_of_attention(), operands));
}

// Reports implicit redistributions of operands with different placements, and returns their bytes.
std::int64_t report_implicit_redistributions_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                const AttentionOptions& options, AttentionStrategy strategy) {
  if (C10_LIKELY(!is_implicit_redistribution_restricted() && !is_listening(Event::Kind::op) &&
                 !is_explaining_redistributions()))
    return 0;
  const auto moves = attention_impl::input_moves_of(q, k, v, options, strategy);
  if (moves.bytes == 0) return 0;
  for (const auto& move : moves.operands) record_redistribution(move.name, move.from, move.to);
  report_implicit_redistributions(*one_mesh({&q, &k, &v}), [&] {
    auto text = c10::str("attention moves ", moves.bytes, " bytes to the rank that receives most:");
    for (const auto& move : moves.operands)
      text += c10::str(" ", move.name, " ", move.from, " -> ", to_string(move.to), ";");
    return text;
  });
  return moves.bytes;
}

// The hooks of selective recomputation. It identifies attention by the kernel that runs on one device.
CachedForward cached_forward() {
  if (C10_LIKELY(!is_caching_results())) return {};
  static const OpEntry& entry =
      entry_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::_scaled_dot_product_flash_attention_for_cpu", ""));
  CachedForward kept;
  kept.take = [](at::Tensor& out, at::Tensor& lse) {
    torch::jit::Stack stack(entry.args.size());
    if (!replay_cached_result(entry, stack)) return false;
    out = stack[0].toTensor();
    lse = stack[1].toTensor();
    return true;
  };
  kept.keep = [](const at::Tensor& out, const at::Tensor& lse) { cache_result(entry, {out, lse}); };
  return kept;
}

at::Tensor attend_checked(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options) {
  const CallerScope caller(attention_impl::attention_call_name());
  const bool shown = is_dispatch_mode_active();
  const DisableDispatchModesGuard hidden;
  check_regular_tensor(q, k, v, options.mask);
  for (const auto* more : {&options.sinks, &options.row_cu_seqlens}) {
    if (more->defined()) check_regular_tensor(q, k, v, *more);
  }
  const auto strategy = AttentionStrategyScope::current();
  const auto moved = report_implicit_redistributions_of(q, k, v, options, strategy);
  const auto check = check_before(q, k, v, options);
  std::string text;
  const auto begin = std::chrono::steady_clock::now();
  const auto out =
      attend(q, k, v, options, strategy, recording_explanations() ? &text : nullptr, cached_forward(), shown);
  if (is_listening(Event::Kind::op)) {
    Event event{Event::Kind::op, attention_impl::attention_call_name(), "", moved, begin, {}};
    event.tensors = out;
    emit_event(std::move(event));
  }
  if (!text.empty()) record_explanation("attention\n" + text);
  if (check) check->compare(out);
  return out;
}

// Whether this kernel runs the call. ATen's composite kernel runs other calls: it raises errors for invalid ones, and
// selects another kernel for others.
bool takes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask,
           double dropout, bool causal, bool gqa) {
  const bool masked = mask && mask->defined();
  const auto* mesh = one_mesh({&q, &k, &v, masked ? &*mask : &q});
  if (mesh == nullptr || !at::globalContext().userEnabledFlashSDP()) return false;
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || q.numel() == 0 || k.numel() == 0 || v.numel() == 0) return false;
  if (!has_kernel(*mesh, q, v) || !q.is_floating_point() || q.scalar_type() != k.scalar_type() ||
      q.scalar_type() != v.scalar_type())
    return false;
  if (q.size(0) != k.size(0) || k.size(0) != v.size(0) || k.size(1) != v.size(1) || k.size(2) != v.size(2))
    return false;
  if (q.size(3) != k.size(3) || (gqa ? q.size(1) % k.size(1) != 0 : q.size(1) != k.size(1))) return false;
  if (is_bit_identical()) return false;  // the kernel's rule gathers the sequence
  if (dropout < 0 || dropout > 1 || (masked && (causal || mask->requires_grad()))) return false;
  if (masked && mask->scalar_type() != at::kBool && !mask->is_floating_point()) return false;
  return attention_impl::sequence_axes(q, k, v) != 0;
}

// In a BitIdentical scope products and a softmax compute attention on devices other than the CPU.
bool is_composed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto* mesh = is_bit_identical() && q.dim() == 4 ? one_mesh({&q, &k, &v}) : nullptr;
  return mesh != nullptr && mesh->device != c10::kCPU;
}

// Makes ATen initialize its priority order of GPU attention kernels. ATen does this at the first call without a lock,
// so ranks that are threads could get different orders.
void force_kernel_order(const at::Tensor& q) {
  static std::once_flag once;
  if (q.device().type() != c10::kCUDA) return;
  std::call_once(once, [&] {
    const LocalBelowAutogradGuard regular;
    const at::Tensor any = at::empty({1, 1, 8, 8}, at::TensorOptions(at::kHalf).device(q.device()));
    at::_fused_sdp_choice(any, any, any);
  });
}

}  // namespace

at::Tensor attention_special(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const std::optional<at::Tensor>& mask, double dropout, bool causal,
                             std::optional<double> scale, bool gqa) {
  if (q.dim() == 3 && k.dim() == 3 && v.dim() == 3 && one_mesh({&q, &k, &v}) != nullptr) {
    return at::scaled_dot_product_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), mask, dropout, causal,
                                            scale, gqa)
        .squeeze(0);
  }
  const bool composed = is_composed(q, k, v);
  if (!composed && !takes(q, k, v, mask, dropout, causal, gqa)) {
    force_kernel_order(q);
    return at::native::scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale, gqa);
  }
  AttentionOptions options;
  if (mask) options.mask = *mask;
  options.dropout = dropout;
  options.causal = causal;
  options.scale = scale;
  attention_impl::check_call(q, k, v, options);
  return composed ? attention_impl::reference_attention(q, k, v, options) : attend_checked(q, k, v, options);
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options) {
  const auto device = q.device().type();
  // Casts as autocast casts the operands of ATen's operator, because autocast does not support the meta device.
  if (at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device)) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto type = at::autocast::get_autocast_dtype(device);
    const auto cast = [&](const at::Tensor& t) { return at::autocast::cached_cast(type, t, device); };
    return attention(cast(q), cast(k), cast(v), options);
  }
  attention_impl::check_call(q, k, v, options);
  const bool learned_mask = options.mask.defined() && options.mask.requires_grad() && at::GradMode::is_enabled();
  const auto* mesh = one_mesh({&q, &k, &v, &options.mask, &options.sinks, &options.row_cu_seqlens});
  const bool ours = mesh != nullptr && one_mesh({&q, &k, &v}) != nullptr && has_kernel(*mesh, q, v);
  if (is_bit_identical()) return attention_impl::masked_attention(q, k, v, options);
  if (!ours || learned_mask || q.numel() == 0) {
    return attention_impl::reference_attention(q, k, v, options);
  }
  return attend_checked(q, k, v, options);
}

}  // namespace dtensor
