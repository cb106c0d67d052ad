// Cross entropy as one autograd node. Operands are redistributed so that each mesh axis splits tokens or classes, and
// the loss is computed on local tensors. Gradients are DTensors again (Partial where the classes or the tokens were
// split).
#include "dtensor/loss.h"
#include "internal/aten_scopes.h"
#include "internal/autocast.h"
#include "internal/bit_identical.h"
#include "internal/gather_hook.h"
#include "internal/gradient_hooks.h"
#include "internal/host_work.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include "internal/kernels/aligned_rows.h"
#include "internal/shard_segments.h"
#include "parallel/loss/class_shard.h"
#include "parallel/loss/decomposed_loss.h"
#include "parallel/loss/loss_chunks.h"
#include "parallel/loss/token_loss.h"

namespace dtensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Call = LossCall;
using CallPtr = std::shared_ptr<Call>;

// Local rows [t, last] of a [..., last] tensor.
at::Tensor rows_of(const at::Tensor& tensor) {
  const at::Tensor local = local_part(tensor);
  return local.reshape({c10::multiply_integers(local.sizes().slice(0, local.dim() - 1)), local.size(-1)});
}

// The local rows of this rank's classes; undefined without a head. A parameter comes from the gathered copy of its FSDP
// unit, as for an operator.
at::Tensor local_head(const Call& call, const at::Tensor& head) {
  if (!call.linear || call.shard.is_outside_mesh()) return {};
  return call.shard.mesh ? gathered_local(DTensor(head), call.shard.classes) : local_part(head);
}

// The head with rows for fast products, or nothing.
at::Tensor aligned_head(const Call& call, const at::Tensor& local) {
  return call.linear ? with_aligned_rows(local) : at::Tensor();
}

// The reduced loss, on every rank; sets the divisors.
at::Tensor reduced(Call& call, const TokenLoss& parts) {
  std::vector<at::Tensor> sums = {parts.loss.sum(), parts.state.target_weight.sum(), parts.state.valid.sum()};
  sums.push_back(parts.z.defined() ? parts.z.sum() : at::zeros_like(sums[0]));
  const at::Tensor all = at::stack(sums);
  call.shard.reduce_tokens(all, ReduceOp::sum);
  const bool mean = call.options.reduction == LossReduction::mean;
  call.divisor = mean ? all[1].clone() : at::ones_like(all[1]);
  call.z_divisor = mean ? all[2].clone() : call.divisor;
  const at::Tensor loss = all[0] / call.divisor;
  return parts.z.defined() ? loss + all[3] / call.z_divisor * call.options.z_loss : loss;
}

at::Tensor wrapped(const Call& call, const at::Tensor& local, const Placements& placements, at::IntArrayRef sizes) {
  return call.shard.mesh ? at::Tensor(DTensor::from_local(local, call.shard.mesh, placements, sizes)) : local;
}

at::Tensor unreduced(const Call& call, const TokenLoss& parts, at::IntArrayRef local_sizes) {
  const at::Tensor loss = parts.z.defined() ? parts.loss + parts.z * call.options.z_loss : parts.loss;
  return wrapped(call, loss.view(local_sizes), call.shard.tokens, call.token_sizes);
}

Scales scales_of(const Call& call, const at::Tensor& grad) {
  const bool none = call.options.reduction == LossReduction::none;
  const Placements placements = none ? call.shard.tokens : Placements(call.shard.tokens.size());
  const at::Tensor own = local_part(call.shard.mesh ? to_placements(grad, call.shard.mesh, placements) : grad);
  Scales scales{none ? own.reshape({-1}) : own / call.divisor, {}};
  if (call.options.z_loss > 0) scales.z = (none ? scales.loss : own / call.z_divisor) * call.options.z_loss;
  return scales;
}

// Partial on the given axes, otherwise as `placements`.
Placements partial_on(Placements placements, const std::vector<std::int64_t>& axes) {
  for (const std::int64_t axis : axes) placements[static_cast<std::size_t>(axis)] = Partial();
  return placements;
}

// The result on a rank outside the mesh: metadata of the members' result, without data.
at::Tensor absent(const Call& call, const Placements& placements, at::IntArrayRef sizes, at::ScalarType type) {
  const NoMeshScopeGuard regular;
  const auto options = at::TensorOptions(type).device(call.shard.mesh.device_type());
  const at::Tensor nothing =
      sizes.empty() ? at::empty({}, options) : at::empty(std::vector<std::int64_t>(sizes.size()), options);
  return DTensor::from_local(nothing, call.shard.mesh, placements, sizes);
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& values, const std::optional<at::Tensor>& weight,
                            CallPtr call) {
    const at::Tensor head = weight.value_or(at::Tensor());
    const LocalBelowAutogradGuard local;
    ctx->saved_data["call"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(call));
    SavedSource rows_source(values);
    ctx->save_for_backward({rows_source.source(), head});
    rows_source.reset();
    call->values = rows_source;
    if (call->shard.is_outside_mesh()) return absent_loss(*call, at::toOpMathType(values.scalar_type()));
    const at::Tensor rows = rows_of(values);
    const TokenLoss parts = forward_chunks(*call, rows, aligned_head(*call, std::exchange(call->head, {})));
    call->state = parts.state;
    if (call->options.reduction == LossReduction::none) {
      return unreduced(*call, parts, local_part(values).sizes().slice(0, values.dim() - 1));
    }
    return wrapped(*call, reduced(*call, parts), Placements(call->shard.tokens.size()), {});
  }

  static at::Tensor absent_loss(const Call& call, at::ScalarType type) {
    if (call.options.reduction == LossReduction::none) return absent(call, call.shard.tokens, call.token_sizes, type);
    return absent(call, Placements(call.shard.tokens.size()), {}, type);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& call = *static_cast<Holder*>(ctx->saved_data["call"].toCapsule().get())->call;
    auto saved = ctx->get_saved_variables();
    saved[0] = call.values.unpack(saved[0]);
    if (at::GradMode::is_enabled()) {
      call.logits.reset();
      return gradient_with_graph({saved[0], saved[1], call.given, call.options}, grads[0]);
    }
    const LocalNoGradGuard guard;
    LossGradients local;
    if (!call.shard.is_outside_mesh()) {
      const at::Tensor head = aligned_head(call, local_head(call, saved[1]));
      local = backward_chunks(call, rows_of(saved[0]), head, scales_of(call, grads[0]));
      local.rows = local.rows.view(local_part(saved[0]).sizes());
    }
    variable_list result(3);
    if (!call.shard.mesh) return {local.rows, local.head, {}};
    result[0] = as_gradient(call, local.rows, saved[0], DTensor(saved[0]).placements(),
                            call.linear ? call.shard.class_axes : std::vector<std::int64_t>());
    if (call.linear) result[1] = as_gradient(call, local.head, saved[1], call.shard.classes, call.shard.token_axes);
    return result;
  }

  // Partial over the axes that replicate the operand and split the tensor that it was multiplied with. `used`: the
  // placements of the operand in the product.
  static at::Tensor as_gradient(const Call& call, const at::Tensor& local, const at::Tensor& operand,
                                const Placements& used, const std::vector<std::int64_t>& sums) {
    const Placements placements = partial_on(used, sums);
    if (call.shard.is_outside_mesh()) return absent(call, placements, operand.sizes(), operand.scalar_type());
    return wrapped(call, local, placements, operand.sizes());
  }

  struct Holder : torch::CustomClassHolder {
    explicit Holder(CallPtr c) : call(std::move(c)) {}
    CallPtr call;
  };
};

void check_sizes(const at::Tensor& values, const at::Tensor& targets, const CrossEntropyOptions& o,
                 std::int64_t classes) {
  TORCH_CHECK(values.dim() >= 1 && targets.sizes() == values.sizes().slice(0, values.dim() - 1),
              "cross_entropy: expected targets of the sizes of values without the last dimension, got targets ",
              targets.sizes(), " and values ", values.sizes());
  TORCH_CHECK(values.is_floating_point(), "cross_entropy: expected floating-point values, got ", values.scalar_type());
  TORCH_CHECK(c10::isIntegralType(targets.scalar_type(), false),
              "cross_entropy: expected integer targets (class indices), got ", targets.scalar_type());
  TORCH_CHECK(o.label_smoothing >= 0 && o.label_smoothing <= 1,
              "cross_entropy: expected label_smoothing in [0, 1], got ", o.label_smoothing);
  TORCH_CHECK(o.z_loss >= 0, "cross_entropy: expected z_loss >= 0, got ", o.z_loss);
  TORCH_CHECK(!o.weight.defined() || (o.weight.dim() == 1 && o.weight.size(0) == classes),
              "cross_entropy: expected a weight of sizes [", classes, "], got ",
              o.weight.defined() ? o.weight.sizes() : at::IntArrayRef());
}

void set_weight(Call& call, at::ScalarType type) {
  call.weight_sum = static_cast<double>(call.shard.count);
  if (!call.options.weight.defined()) return;
  at::NoGradGuard no_grad;
  // A copy, as for the targets: the caller may overwrite it before backward.
  at::Tensor& weight = call.options.weight;
  weight = weight.detach().to(at::toOpMathType(type), /*non_blocking=*/false, /*copy=*/true);
  if (const auto& mesh = call.shard.mesh) {  // the same on all ranks; a DTensor may be on another mesh
    weight = distribute_tensor(weight, mesh, Placements(static_cast<std::size_t>(mesh.ndim())));
  } else if (is_dtensor(weight)) {
    weight = DTensor(weight).full_tensor();
  }
  if (call.shard.is_outside_mesh()) return;
  const at::Tensor full = local_part(weight);
  call.weight_sum = full.sum().item<double>();
  call.weight = full.narrow(0, call.shard.first, call.shard.own);
}

DeviceMesh mesh_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  for (const at::Tensor& t : {a, b, c}) {
    if (is_dtensor(t)) return compute_mesh_of(DTensor(t).mesh());
  }
  return {};
}

// Shard on the axes that split the tokens, otherwise Replicate.
Placements token_placements(const at::Tensor& values, const DeviceMesh& mesh) {
  Placements tokens(static_cast<std::size_t>(mesh.ndim()));
  if (!is_dtensor(values)) return tokens;
  for (std::size_t a = 0; a < tokens.size(); ++a) {
    const Placement& p = DTensor(values).placements()[a];
    if (p.is_shard() && p.dim() < values.dim() - 1) tokens[a] = p.as_storage(false);
  }
  return tokens;
}

at::Tensor on_one_device(const at::Tensor& values, const std::optional<at::Tensor>& head, const at::Tensor& targets,
                         Call call) {
  call.shard.own = call.shard.count = call.linear ? head->size(0) : values.size(-1);
  set_weight(call, values.scalar_type());
  call.given = targets.detach().clone();
  call.targets = call.given.reshape({-1}).to(at::kLong);
  if (head) call.head = local_part(*head);
  return CrossEntropy::apply(values, head, std::make_shared<Call>(std::move(call)));
}

// The head's weight as autograd saves it. A storage shard stays one: each pass gathers it, as an operator does.
at::Tensor stored_head(const at::Tensor& weight, const DeviceMesh& mesh, const Placements& classes) {
  if (!is_dtensor(weight) || compute_mesh_of(DTensor(weight).mesh()) != mesh) {
    return to_placements(weight, mesh, classes);
  }
  Placements gathered = DTensor(weight).placements();
  for (Placement& p : gathered) p = p.is_storage() ? Placement(Replicate()) : p;
  if (gathered != classes) return to_placements(weight, mesh, classes);
  watch_gradient(DTensor(weight));
  return weight;
}

void set_targets(Call& call, const at::Tensor& targets) {
  at::NoGradGuard no_grad;
  call.given = to_placements(targets, call.shard.mesh, call.shard.tokens).clone();
  if (!call.shard.is_outside_mesh()) call.targets = local_part(call.given).reshape({-1}).to(at::kLong);
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const CrossEntropyOptions& options) {
  check_sizes(logits, targets, options, logits.size(-1));
  Call call{.options = options, .token_sizes = targets.sizes().vec()};
  const DeviceMesh mesh = mesh_of(logits, targets, options.weight);
  if (!mesh) return on_one_device(logits, std::nullopt, targets, std::move(call));
  const Placements tokens = token_placements(logits, mesh);
  Placements classes(tokens.size()), wanted = tokens;
  for (std::size_t a = 0; a < tokens.size(); ++a) {
    const Placement p = is_dtensor(logits) ? DTensor(logits).placements()[a] : Replicate();
    if (!p.is_shard(logits.dim() - 1) || p.is_strided() || p.is_zigzag()) continue;
    classes[a] = Shard(0);
    wanted[a] = Shard(logits.dim() - 1);
  }
  const at::Tensor values = to_placements(logits, mesh, wanted);
  call.shard = class_shard(mesh, logits.size(-1), tokens, classes);
  set_weight(call, logits.scalar_type());
  set_targets(call, targets);
  return CrossEntropy::apply(values, std::optional<at::Tensor>(), std::make_shared<Call>(std::move(call)));
}

at::Tensor linear_cross_entropy(const at::Tensor& given_hidden, const at::Tensor& given_weight,
                                const at::Tensor& targets, const CrossEntropyOptions& options, std::int64_t chunk) {
  refuse_if_bit_identical("linear_cross_entropy");
  TORCH_CHECK(given_weight.dim() == 2 && given_hidden.dim() >= 1 && given_hidden.size(-1) == given_weight.size(1),
              "linear_cross_entropy: expected hidden [..., features] and weight [classes, features], got ",
              given_hidden.sizes(), " and ", given_weight.sizes());
  // Backward recomputes the logits and may run outside autocast: both passes must compute the same logits.
  const at::Tensor hidden = cast_as_autocast(given_hidden), weight = cast_as_autocast(given_weight);
  TORCH_CHECK(chunk >= 0, "linear_cross_entropy: expected chunk >= 0, got ", chunk);
  TORCH_CHECK(hidden.scalar_type() == weight.scalar_type(), "linear_cross_entropy: expected equal dtypes, got hidden ",
              hidden.scalar_type(), " and weight ", weight.scalar_type());
  check_sizes(hidden, targets, options, weight.size(0));
  const bool differentiable = at::GradMode::is_enabled() && (hidden.requires_grad() || weight.requires_grad());
  Call call{.options = options,
            .chunk = chunk,
            .linear = true,
            .keeps_logits = chunk == 0 && differentiable,
            .token_sizes = targets.sizes().vec()};
  const DeviceMesh mesh = mesh_of(hidden, weight, targets);
  if (!mesh) return on_one_device(hidden, weight, targets, std::move(call));
  Placements tokens = token_placements(hidden, mesh), classes(tokens.size());
  for (std::size_t a = 0; a < tokens.size(); ++a) {
    const Placement p = is_dtensor(weight) ? DTensor(weight).placements()[a] : Replicate();
    // A storage shard is gathered once in a pass. An axis that splits the classes cannot also split the tokens.
    if (!p.is_shard(0) || p.is_storage() || !is_contiguous_split(p)) continue;
    classes[a] = p;
    tokens[a] = Replicate();
  }
  const bool moves = is_dtensor(hidden) && DTensor(hidden).mesh() == mesh && DTensor(hidden).placements() != tokens;
  const at::Tensor rows = moves ? gather_activation(hidden, tokens) : to_placements(hidden, mesh, tokens);
  const at::Tensor head = stored_head(weight, mesh, classes);
  call.shard = class_shard(mesh, weight.size(0), tokens, classes);
  call.head = local_head(call, head);
  set_weight(call, hidden.scalar_type());
  set_targets(call, targets);
  return CrossEntropy::apply(rows, std::optional(head), std::make_shared<Call>(std::move(call)));
}

}  // namespace dtensor
