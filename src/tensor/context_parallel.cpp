// ContextParallelScope: kernels of ATen's attention operators at the key that operator scopes include. There every
// caller is seen, whatever name it called and whether it is Python or C++. Layouts are decided per call, from the local
// lengths of its queries, keys and mask.
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <array>
#include <mutex>
#include <numeric>
#include <set>

#include "autograd/conversion_nodes.h"
#include "internal/aten_scopes.h"
#include "internal/autograd_node.h"
#include "internal/context_parallel_scope.h"
#include "internal/dispatch_modes.h"
#include "internal/scoped_value.h"
#include "mesh/content_hash.h"
#include "ops/checks/regular_operand.h"
#include "ops/dispatch/registration.h"
#include "placement/shard_map.h"
#include "scope/scope_frames.h"

namespace dtensor {
namespace {

using Lengths = std::vector<std::int64_t>;  // one entry for each rank

struct Scope {
  DeviceMesh mesh;
  std::vector<std::int64_t> lengths;
  bool even;  // shards of `lengths` are equally long on all ranks, so that a call needs no exchange of its lengths
};

struct NotObservedGuard {
  c10::impl::ExcludeDispatchKeyGuard exclude{kOperatorScopesKey};
};

std::int64_t rank_count(const Scope& scope) { return scope.mesh.size(); }

Lengths shard_lengths(std::int64_t length, std::int64_t ranks) {
  Lengths result;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    result.push_back(local_sizes({length}, {ZigzagShard(0)}, {ranks}, {rank})[0]);
  }
  return result;
}

// Numbers that describe a call, on each rank: lengths of queries and keys, rows and columns of the mask (1 without).
struct CallLengths {
  Lengths queries, keys, rows, columns;
};

CallLengths lengths_of_ranks(const Scope& scope, const std::array<std::int64_t, 4>& mine) {
  const auto ranks = rank_count(scope);
  const auto constant = [&](std::size_t i) { return Lengths(ranks, mine[i]); };
  if (scope.even) return {constant(0), constant(1), constant(2), constant(3)};
  const LocalBelowAutogradGuard regular;
  const auto all = at::empty({ranks, std::ssize(mine)}, at::kLong);
  scope.mesh.communicator().all_gather(all.unbind(0), at::tensor(mine, at::kLong)).wait();
  const auto column = [&](std::int64_t which) {
    const auto numbers = all.select(1, which).contiguous();
    return Lengths(numbers.const_data_ptr<std::int64_t>(), numbers.const_data_ptr<std::int64_t>() + ranks);
  };
  return {column(0), column(1), column(2), column(3)};
}

std::int64_t total(const Lengths& lengths) { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }

// A tensor that every rank has in full. The gradient of its local tensor is this rank's share, as that of a shard is:
// the shares of all ranks add up to the gradient.
struct ShareOfGradient final : torch::autograd::Node {
  explicit ShareOfGradient(SpecPtr s) : spec(std::move(s)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    const DisableDispatchModesGuard hidden;
    const Placements share(spec->placements.size(), Partial());
    return {as_dtensor_like(grads[0], *spec).redistribute(share).to_local(share)};
  }
  std::string name() const override { return "ShareOfGradient"; }
  SpecPtr spec;
};

at::Tensor replicated(const Scope& scope, const at::Tensor& tensor) {
  const auto strides = c10::contiguous_strides(tensor.sizes());
  const at::Tensor result = DTensor::from_local(tensor.detach(), scope.mesh, {Replicate()}, tensor.sizes(), strides);
  if (!at::GradMode::is_enabled() || !tensor.requires_grad()) return result;
  const auto node = make_node<ShareOfGradient>(dtensor_or_null(result)->spec());
  node->set_next_edges(torch::autograd::collect_next_edges(tensor));
  torch::autograd::set_history(result, node);
  return result;
}

at::Tensor sharded(const Scope& scope, const at::Tensor& local, std::int64_t dim, std::int64_t length) {
  at::DimVector sizes(local.sizes());
  dim += dim < 0 ? local.dim() : 0;
  sizes[dim] = length;
  return DTensor::from_local(local, scope.mesh, {ZigzagShard(dim)}, sizes, c10::contiguous_strides(sizes));
}

// How the operands of one call are placed.
struct Layout {
  std::int64_t queries = 0, keys = 0;  // full lengths
  bool keys_are_sharded = true;
  bool mask_rows_are_sharded = false, mask_columns_are_sharded = false;
};

std::int64_t size_or_one(const std::optional<at::Tensor>& mask, std::int64_t dim) {
  return mask && mask->defined() && mask->dim() >= -dim ? mask->size(dim) : 1;
}

// Queries are this rank's shard. So are keys of the queries' lengths, or of a length of the scope. Other keys, and
// those for which the mask has local columns but full rows, are the same on every rank. All ranks decide by the same
// numbers.
Layout layout_of(const Scope& scope, const at::Tensor& q, const at::Tensor& k, const std::optional<at::Tensor>& mask) {
  const auto [queries, keys, rows, columns] =
      lengths_of_ranks(scope, {q.size(-2), k.size(-2), size_or_one(mask, -2), size_or_one(mask, -1)});
  const auto all = [&](std::int64_t length) { return Lengths(queries.size(), length); };
  Layout at;
  at.queries = total(queries);
  TORCH_CHECK(queries == shard_lengths(at.queries, rank_count(scope)),
              "context_parallel: expected queries that are the zigzag shards of one sequence, got ",
              at::IntArrayRef(queries), " tokens on the ranks of ", scope.mesh.str(), ", but the shards of ",
              at.queries, " tokens have ", at::IntArrayRef(shard_lengths(at.queries, rank_count(scope))),
              "; shard the sequence with `buffers`");
  const auto is_of_scope = [&, &own = keys](std::int64_t n) { return own == shard_lengths(n, rank_count(scope)); };
  at.keys_are_sharded = keys == queries || std::any_of(scope.lengths.begin(), scope.lengths.end(), is_of_scope);
  if (columns == keys && columns != all(1) && columns != all(total(keys))) {
    at.mask_columns_are_sharded = at.keys_are_sharded && rows == all(1);
    at.keys_are_sharded = at.keys_are_sharded && rows != all(at.queries);
  }
  at.keys = at.keys_are_sharded ? total(keys) : k.size(-2);
  at.mask_rows_are_sharded = rows != all(1) && rows != all(at.queries);
  const bool fits = (!at.mask_rows_are_sharded || rows == queries) &&
                    (columns == all(1) || columns == all(at.keys) || at.mask_columns_are_sharded);
  TORCH_CHECK(fits, "context_parallel: expected a mask of ", at.queries, " rows (or the ranks' ",
              at::IntArrayRef(queries), ") and ", at.keys, " columns, got ", at::IntArrayRef(rows), " rows and ",
              at::IntArrayRef(columns), " columns");
  return at;
}

std::optional<at::Tensor> placed_mask(const Scope& scope, const std::optional<at::Tensor>& mask, const Layout& at) {
  if (!mask || !mask->defined()) return mask;
  if (at.mask_rows_are_sharded) return sharded(scope, *mask, -2, at.queries);
  if (at.mask_columns_are_sharded) return sharded(scope, *mask, -1, at.keys);
  return mask->requires_grad() ? replicated(scope, *mask) : *mask;
}

// Compares keys and values that are no shards between ranks, at calls that all ranks sample.
void check_replicated(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  static const OpEntry& entry =
      entry_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::scaled_dot_product_attention", ""));
  const std::vector<c10::IValue> args{q, k, v, c10::IValue(), 0.0, false, c10::IValue(), false};
  const CallOperands operands(entry, args);
  if (!should_sample_call(entry, operands)) return;
  const auto complaint = [&](std::size_t) {
    return c10::str(
        "context_parallel: expected keys of ", q.size(-2),
        " tokens or of the length of a buffer, each rank with its shard, or the same keys on every rank; got ",
        k.size(-2), " tokens on this rank, whose values differ between ranks");
  };
  check_all_equal_across_ranks(as_mesh_impl(*operands.mesh), 1, {k, v}, complaint);
}

at::Tensor attend_full_sequence(const Scope& scope, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const std::optional<at::Tensor>& mask, double dropout, bool causal,
                                std::optional<double> scale, bool gqa) {
  const auto at = layout_of(scope, q, k, mask);
  const auto query = sharded(scope, q, -2, at.queries);
  if (!at.keys_are_sharded) check_replicated(query, k, v);
  const auto placed = [&](const at::Tensor& t) {
    return at.keys_are_sharded ? sharded(scope, t, -2, at.keys) : replicated(scope, t);
  };
  const DTensor result(at::scaled_dot_product_attention(query, placed(k), placed(v), placed_mask(scope, mask, at),
                                                        dropout, causal, scale, gqa));
  return result.redistribute({ZigzagShard(q.dim() - 2)}).to_local();
}

at::Tensor attention_kernel(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& mask, double dropout, bool causal,
                            std::optional<double> scale, bool gqa) {
  const NotObservedGuard guard;
  const auto* scope = ScopedValue<Scope>::current();
  const bool distributed = is_dtensor(q) || is_dtensor(k) || is_dtensor(v) || (mask && is_dtensor(*mask));
  if (scope == nullptr || distributed || q.dim() < 2 || k.dim() < 2) {
    return at::scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale, gqa);
  }
  return attend_full_sequence(*scope, q, k, v, mask, dropout, causal, scale, gqa);
}

// Operators that compute attention of regular tensors without scaled_dot_product_attention.
const std::set<std::string>& other_attention() {
  static const std::set<std::string> names = {
      "aten::_scaled_dot_product_attention_math",
      "aten::_scaled_dot_product_attention_math_for_mps",
      "aten::_scaled_dot_product_cudnn_attention",
      "aten::_scaled_dot_product_efficient_attention",
      "aten::_scaled_dot_product_flash_attention",
      "aten::_scaled_dot_product_flash_attention_for_cpu",
      "aten::_scaled_dot_product_fused_attention_overrideable",
      "aten::_cudnn_attention_forward",
      "aten::_cudnn_attention_forward_no_dropout_inplace",
      "aten::_efficient_attention_forward",
      "aten::_flash_attention_forward",
      "aten::_flash_attention_forward_no_dropout_inplace",
      "aten::_native_multi_head_attention",
      "aten::_transformer_encoder_layer_fwd",
      "aten::_triton_multi_head_attention",
      "aten::_triton_scaled_dot_attention",
  };
  return names;
}

void refusing_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const NotObservedGuard guard;
  const auto args = torch::jit::last(*stack, op.schema().arguments().size());
  const bool distributed = std::any_of(args.begin(), args.end(),
                                       [](const c10::IValue& v) { return v.isTensor() && is_dtensor(v.toTensor()); });
  TORCH_CHECK(ScopedValue<Scope>::current() == nullptr || distributed, "context_parallel: ", op.schema().name(),
              " would attend to this rank's shard of the sequence only; call ",
              "torch.nn.functional.scaled_dot_product_attention, which attends to the full sequence");
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kOperatorScopesKey), stack);
}

void register_kernels() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto& handles = *new std::vector<c10::RegistrationHandleRAII>();  // never destroyed
  const auto add = [&](const c10::OperatorName& name, c10::KernelFunction kernel) {
    handles.push_back(dispatcher.registerImpl(name, kOperatorScopesKey, std::move(kernel), std::nullopt, nullptr,
                                              "dtensor context_parallel"));
  };
  add({"aten::scaled_dot_product_attention", ""},
      c10::KernelFunction::makeFromUnboxedRuntimeFunction(&attention_kernel));
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!other_attention().contains(name.name) || !dispatcher.findSchema(name)) continue;
    add(name, c10::KernelFunction::makeFromBoxedFunction<&refusing_kernel>());
  }
}

}  // namespace

ContextParallelScope::ContextParallelScope(const DeviceMesh& mesh, std::vector<std::int64_t> lengths) {
  ensure_registered();
  static std::once_flag once;
  std::call_once(once, register_kernels);
  TORCH_CHECK(mesh && mesh.ndim() == 1 && mesh.is_member(),
              "context_parallel: expected a mesh of one dimension with this ", "rank, got ",
              mesh ? mesh.str() : "an empty DeviceMesh");
  const bool even = std::all_of(lengths.begin(), lengths.end(), [&](std::int64_t length) {
    const auto parts = shard_lengths(length, mesh.size());
    return std::all_of(parts.begin(), parts.end(), [&](std::int64_t part) { return part == parts[0]; });
  });
  scope_ = open_scope(Scope{mesh, std::move(lengths), even}, Recompute::restored, OperatorScope::yes);
}

bool ContextParallelScope::current() { return ScopedValue<Scope>::current() != nullptr; }

}  // namespace dtensor
