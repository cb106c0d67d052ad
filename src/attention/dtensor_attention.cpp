// Attention of DTensors: layouts, passes and autograd.
#include "attention/dtensor_attention.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "attention/local_operands.h"
#include "attention/passes/per_row_documents.h"
#include "autograd/gradients/leaf_gradient.h"
#include "comm/record/caller.h"
#include "internal/autograd_node.h"
#include "internal/dispatch_modes.h"
#include "placement/stride_order.h"
#include "scope/visible_operator.h"

namespace dtensor::attention_impl {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

c10::intrusive_ptr<MeshImpl> mesh_of(const TensorSpec& spec) {
  return c10::intrusive_ptr<MeshImpl>::reclaim_copy(const_cast<MeshImpl*>(&as_mesh_impl(*spec.mesh)));
}

// The operator that dispatch modes see instead of the passes: ATen's operator on one device, forward or backward.
c10::OperatorHandle operator_shown(const char* way) {
  const std::string name = std::string("aten::_scaled_dot_product_flash_attention_for_cpu") + way;
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
}

torch::jit::Stack call_shown(const Setup& s, const variable_list& in, const at::Tensor& mask) {
  return {in[0],
          in[1],
          in[2],
          s.scores.dropout,
          s.options.causal,
          mask.defined() ? c10::IValue(mask) : c10::IValue(),
          s.options.scale};
}

// [B, H, L, 2]: the log-sum-exp of each row, and the maximum score that is stored separately.
SpecPtr sums_spec(const Setup& s) {
  const at::DimVector sizes{s.q->sizes[0], s.q->sizes[1], s.q->sizes[2], 2};
  return intern_spec(s.q->mesh, s.layout.q, sizes, c10::contiguous_strides(sizes), accumulate_type(s.q->dtype));
}

at::Tensor describe_sums(const Forward& result) {
  if (!result.lse.defined()) return {};
  return at::stack({result.lse, result.row_max.defined() ? result.row_max : at::zeros_like(result.lse)}, 3);
}

struct AttentionBackward final : Node {
  AttentionBackward(Setup s, const variable_list& in, const at::Tensor& given_mask, const LocalMask& mask,
                    const Forward& result)
      : setup(std::move(s)),
        q(in[0], false),
        k(in[1], false),
        v(in[2], false),
        sinks(in[3], false),
        full_mask(given_mask, false),
        documents(setup.options.row_cu_seqlens, false),
        local_mask(mask.values, false),
        out(result.out, false),
        lse(result.lse, false),
        row_max(result.row_max, false),
        has_local_rows(mask.has_local_rows) {
    setup.options.row_cu_seqlens = at::Tensor();
  }

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return variable_list(4);
    // Unpacking may run the forward pass again (recomputation), which must be visible to modes as before.
    const variable_list in{q.unpack(), k.unpack(), v.unpack(), sinks.unpack()};
    const Forward forward{out.unpack(), lse.unpack(), row_max.unpack()};
    const CallerScope caller(attention_call_name());
    const bool shown = is_dispatch_mode_active();
    const DisableDispatchModesGuard hidden;
    if (at::GradMode::is_enabled()) return again(in, grads[0]);
    const auto grad = redistribute_tensors({as_dtensor_like(grads[0], *setup.out)}, {setup.layout.q})[0];
    if (!shown || in[3].defined()) return gradients(in, forward, grad);
    const auto call = call_shown(setup, in, full_mask.unpack());
    torch::jit::Stack stack{grad,
                            call[0],
                            call[1],
                            call[2],
                            make_dtensor(setup.out, forward.out),
                            make_dtensor(sums_spec(setup), describe_sums(forward))};
    stack.insert(stack.end(), call.begin() + 3, call.end());
    run_visible_as_op(operator_shown("_backward"), stack, shown, [&](torch::jit::Stack& results) {
      const auto found = gradients(in, forward, grad);
      results = {found[0], found[1], found[2]};
    });
    return {stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor(), at::Tensor()};
  }

  variable_list gradients(const variable_list& in, const Forward& forward, const at::Tensor& grad) const {
    const LocalBelowAutogradGuard scope;
    Backward found;
    if (setup.q->mesh->is_member) {
      Scores scores = setup.scores;
      scores.mask = local_mask.unpack();
      scores.has_local_rows = has_local_rows;
      found = backward_per_row(scores, setup.documents, setup.blocks, local_inputs(setup, in[0], in[1], in[2]),
                               {last_dense(forward.out), forward.lse, forward.row_max}, last_dense(local_of(grad)),
                               in[3].defined() ? local_of(in[3]) : in[3]);
    }
    variable_list result(4);
    result[0] = query_gradient(setup, found.in.q);
    result[1] = key_gradient(setup, found.in.k, setup.k);
    result[2] = key_gradient(setup, found.in.v, setup.v);
    if (in[3].defined()) result[3] = sinks_gradient(setup, found.sinks, dtensor_or_null(in[3])->spec());
    return result;
  }

  // Double backward: computes attention again with ATen operators. Each operand gets an alias, because two operands may
  // be the same tensor or depend on each other; gradients between operands belong to the outer graph.
  variable_list again(const variable_list& in, const at::Tensor& grad) {
    variable_list own = in, asked;
    for (at::Tensor& t : own) {
      if (t.defined() && t.requires_grad()) asked.push_back(t = at::alias(t));
    }
    AttentionOptions options = setup.options;
    options.mask = full_mask.unpack();
    options.row_cu_seqlens = documents.unpack();
    options.sinks = own[3];
    const auto result = reference_attention(own[0], own[1], own[2], options, dropout_mask(setup));
    auto found = torch::autograd::grad({result}, asked, {grad}, true, true);
    variable_list all(4);
    for (std::size_t i = 0, next = 0; i < in.size(); ++i) {
      if (in[i].defined() && in[i].requires_grad()) all[i] = found[next++];
    }
    return all;
  }

  void release_variables() override {
    for (auto* saved : {&q, &k, &v, &sinks, &full_mask, &documents, &local_mask, &out, &lse, &row_max})
      saved->reset_data();
  }
  std::string name() const override { return "AttentionBackward"; }

  Setup setup;
  SavedVariable q, k, v, sinks, full_mask, documents, local_mask, out, lse, row_max;
  bool has_local_rows;
};

// Operands as DTensors in the layout; sinks are sharded like the heads.
variable_list laid_out(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks,
                       const AttentionLayout& layout) {
  variable_list in = redistribute_tensors({q, k, v}, {layout.q, layout.kv, layout.kv});
  in.push_back(sinks);
  if (!sinks.defined()) return in;
  Placements wanted(layout.q.size());
  for (std::size_t a = 0; a < wanted.size(); ++a) {
    if (layout.q[a].is_shard(1)) wanted[a] = layout.q[a].with_dim(0);
  }
  in[3] = redistribute_tensors({sinks}, {std::move(wanted)})[0];
  return in;
}

// Called on members of the mesh.
Forward run_forward(const Setup& setup, const variable_list& in, const LocalMask& mask) {
  const LocalBelowAutogradGuard scope;
  Scores scores = setup.scores;
  scores.mask = mask.values;
  scores.has_local_rows = mask.has_local_rows;
  Forward result = forward_per_row(scores, setup.documents, setup.blocks, local_inputs(setup, in[0], in[1], in[2]),
                                   in[3].defined() ? local_of(in[3]) : in[3]);
  result.out = to_stride_order(result.out, *setup.out);
  return result;
}

// run_forward() that dispatch modes see as the operator of one device. ATen has no operator with sinks.
at::Tensor forward_as_shown(const Setup& setup, const variable_list& in, const at::Tensor& mask, const LocalMask& local,
                            bool shown, Forward& result) {
  shown = shown && !in[3].defined();
  auto call = shown ? call_shown(setup, in, mask) : torch::jit::Stack();
  run_visible_as_op(operator_shown(""), call, shown, [&](torch::jit::Stack& stack) {
    if (setup.q->mesh->is_member) result = run_forward(setup, in, local);
    stack = {make_dtensor(setup.out, result.out)};
    if (shown) stack.emplace_back(make_dtensor(sums_spec(setup), describe_sums(result)));
  });
  at::Tensor out = call[0].toTensor();
  if (call.size() == 1) return out;
  const at::Tensor sums = local_of(call[1].toTensor());
  result = {local_of(out), sums.defined() ? sums.select(3, 0) : sums, sums.defined() ? sums.select(3, 1) : sums};
  return out;
}

// The statistics of the rows as one tensor, for CachedForward.
at::Tensor packed(const Forward& result) {
  return result.row_max.defined() ? at::stack({result.lse, result.row_max}, 3) : result.lse;
}
Forward unpacked(const at::Tensor& out, const at::Tensor& kept) {
  if (!kept.defined() || kept.dim() == 3) return {out, kept};
  return {out, kept.select(3, 0), kept.select(3, 1)};
}

at::Tensor run(Setup setup, const variable_list& in, const at::Tensor& mask, const CachedForward& kept, bool shown) {
  const auto local = local_mask(mask, setup);
  Forward result;
  at::Tensor out;
  if (kept.take && kept.take(out, result.lse)) {
    result = unpacked(local_of(out), result.lse);
  } else {
    out = forward_as_shown(setup, in, mask, local, shown, result);
    if (kept.keep) kept.keep(out, packed(result));
  }
  const bool graph = at::GradMode::is_enabled() && std::any_of(in.begin(), in.end(), [](const at::Tensor& t) {
                       return t.defined() && t.requires_grad();
                     });
  if (!graph) return out;
  for (const at::Tensor& t : in) {
    if (t.defined()) install_gradient_pipeline(*dtensor_or_null(t));
  }
  auto node = make_node<AttentionBackward>(std::move(setup), in, mask, local, result);
  node->set_next_edges(torch::autograd::collect_next_edges(in[0], in[1], in[2], in[3]));
  torch::autograd::set_history(out, node);
  return out;
}

const TensorSpec* first_spec(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  for (const auto* t : {&q, &k, &v}) {
    if (dtensor_or_null(*t) != nullptr) return dtensor_or_null(*t)->spec().get();
  }
  return nullptr;
}

SpecPtr spec_or_replicate(const at::Tensor& t, const TensorSpec& like) {
  if (auto* impl = dtensor_or_null(t)) return impl->spec();
  return intern_spec(like.mesh, Placements(like.placements.size()), t.sizes(), t.strides(), t.scalar_type());
}

// At least one operand is a DTensor.
Operands operands_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto& first = *first_spec(q, k, v);
  return {spec_or_replicate(q, first), spec_or_replicate(k, first), spec_or_replicate(v, first)};
}

}  // namespace

Pattern pattern_of(const AttentionOptions& options, const Operands& o) {
  const auto longest = std::max<std::int64_t>({o.q->sizes[2], o.k->sizes[2], 1});
  return {options.causal, std::min(options.window, longest), options.documents};
}

const std::string& attention_call_name() {
  static const std::string name = "dtensor::attention";
  return name;
}

AxisMask sequence_axes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return first_spec(q, k, v) == nullptr ? 0 : sequence_axes(operands_of(q, k, v));
}

InputMoves input_moves_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options, AttentionStrategy strategy) {
  const auto operands = operands_of(q, k, v);
  return moves_to_layout(cached_layout(operands, pattern_of(options, operands), strategy), operands);
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                  AttentionStrategy strategy, std::string* text, const CachedForward& kept, bool shown) {
  const auto* first = first_spec(q, k, v);
  // Makes regular tensors contiguous: their strides may differ between ranks, but the strides of the result must not.
  const auto as_dtensor_here = [&](const at::Tensor& t) {
    if (!t.defined() || dtensor_or_null(t) != nullptr) return t;
    return distribute_regular_tensor(t.contiguous(), mesh_of(*first), Placements(first->placements.size()));
  };
  const auto query = as_dtensor_here(q), key = as_dtensor_here(k), value = as_dtensor_here(v);
  const auto sinks = as_dtensor_here(options.sinks);
  const Operands operands{dtensor_or_null(query)->spec(), dtensor_or_null(key)->spec(), dtensor_or_null(value)->spec()};
  const Pattern pattern = pattern_of(options, operands);
  auto layout =
      text == nullptr ? cached_layout(operands, pattern, strategy) : search_layout(operands, pattern, strategy, text);
  const auto in = laid_out(query, key, value, sinks, layout);
  const auto back = layout.result;
  const auto out = run(setup_of(in[0], in[1], in[2], std::move(layout), options), in, options.mask, kept, shown);
  return redistribute_tensors({out}, {back})[0];
}

}  // namespace dtensor::attention_impl
