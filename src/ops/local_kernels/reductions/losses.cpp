// Losses over a sharded batch or sharded classes.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>

#include <limits>
#include <numeric>

#include "internal/simulated.h"
#include "ops/local_kernels/local_args.h"
#include "redistribute/regions/part_views.h"

namespace dtensor {
namespace {

// Element-wise losses with a mean over the global batch (mse, smooth_l1, huber, binary cross entropy, soft margin).
// Ranks sum their shard and divide by the global count, in forward and backward, so uneven and empty shards have the
// correct weight. Half types are summed in float.

// The operator's functional overload, with its own copy of the arguments.
struct Functional {
  c10::OperatorHandle op;
  torch::jit::Stack stack;
};

Functional functional_of(const LocalCall& call) {
  const auto& schema = call.info.schema();
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(schema.name().c_str(), "");
  const auto given = torch::jit::last(call.stack, schema.arguments().size());
  return {op, torch::jit::Stack(given.begin(), given.begin() + op.schema().arguments().size())};
}

void halves_to_float(torch::jit::Stack& stack) {
  for (auto& value : stack) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const auto type = value.toTensor().scalar_type();
    if (accumulate_type(type) != type) value = value.toTensor().to(accumulate_type(type));
  }
}

c10::IValue& named(Functional& f, std::string_view name) {
  const auto index = f.op.schema().argumentIndexWithName(name);
  TORCH_CHECK(index, f.op.schema().operator_name(), " has no argument '", name, "'");
  return f.stack[*index];
}

at::Tensor run(Functional& f) {
  halves_to_float(f.stack);
  f.op.callBoxed(f.stack);
  return f.stack.at(0).toTensor();
}

double mean_count(const LocalArgs& args) {
  const auto sizes = at::infer_size(args.global_sizes("self"), args.global_sizes("target"));
  return static_cast<double>(c10::multiply_integers(sizes));
}

void loss_mean_global(LocalCall& call) {
  const LocalArgs args(call);
  const auto reduction = args.integer("reduction");
  auto f = functional_of(call);
  if (reduction == at::Reduction::Mean) named(f, "reduction") = static_cast<std::int64_t>(at::Reduction::Sum);
  auto loss = run(f);
  if (reduction == at::Reduction::Mean) loss = loss / mean_count(args);
  const AxisMask axes = shard_axes(args.spec("self")) | shard_axes(args.spec("target"));
  if (reduction != at::Reduction::None) loss = reduce_contribution(call, loss, ReduceOp::sum, axes);
  set_results(call, {loss.to(call.outputs[0]->dtype)});
}

// ATen divides by the local self.numel(). This kernel uses a sum, and divides the (scalar) incoming gradient by the
// global numel.
void loss_backward_global(LocalCall& call) {
  const LocalArgs args(call);
  auto f = functional_of(call);
  halves_to_float(f.stack);
  if (args.integer("reduction") == at::Reduction::Mean) {
    named(f, "reduction") = static_cast<std::int64_t>(at::Reduction::Sum);
    auto& grad = named(f, "grad_output");
    grad = grad.toTensor() / static_cast<double>(c10::multiply_integers(args.global_sizes("self")));
  }
  set_results(call, {run(f).to(call.outputs[0]->dtype)});
}

// The divisor of multi_margin_loss and similar losses: the number of rows of [N, C], or 1.
double row_count(const LocalArgs& args) {
  const auto sizes = args.global_sizes("self");
  return sizes.size() > 1 ? static_cast<double>(sizes[0]) : 1;
}

void sum_instead_of_mean(LocalCall& call) {
  set_argument(call, "reduction", static_cast<std::int64_t>(at::Reduction::Sum));
}

void margin_loss_backward(LocalCall& call, const LocalArgs& args) {
  set_argument(call, "grad_output", args.tensor("grad_output") / row_count(args));
  sum_instead_of_mean(call);
  call.info.op.callBoxed(call.stack);
}

// ATen's kernel raises this error only on ranks that have rows.
void check_power(const LocalArgs& args) {
  const double p = args.has("p") ? args.value("p").toScalar().toDouble() : 1;
  TORCH_CHECK(p == 1 || p == 2, "only p == 1 and p == 2 supported");
}

void margin_loss(LocalCall& call) {
  const LocalArgs args(call);
  check_power(args);
  if (return_zeros_if_empty(call)) return;
  if (args.integer("reduction") != at::Reduction::Mean) return call.info.op.callBoxed(call.stack);
  if (args.has("grad_output")) return margin_loss_backward(call, args);
  const double rows = row_count(args);
  const AxisMask axes = shard_axes(args.spec("self"), 0) | shard_axes(args.spec("target"), 0);
  sum_instead_of_mean(call);
  auto results = run_aten_operator(call);
  results[0] = reduce_contribution(call, results[0] / rows, ReduceOp::sum, axes);
  set_results(call, std::move(results));
}

// Negative log-likelihood (1-d and 2-d) over a sharded class dimension, a sharded batch, or both. A rank counts a
// target only if it owns that class, and ignores other targets. The mean divides by the total weight of the global
// batch, so ranks with few or no valid targets have the correct weight. A batch without valid targets gives NaN, as on
// one device.

constexpr std::int64_t kIgnored = -100;  // ignore_index for local class numbers

struct Targets {
  at::Tensor target;  // local class numbers
  at::Tensor weight;  // weight of the local classes; may be undefined
  std::int64_t ignore_index;
  AxisMask class_axes, batch_axes;
  bool fit = true;  // this rank's targets are valid classes; devices other than the CPU assert
};

std::int64_t class_dim(const at::Tensor& self) { return self.dim() == 1 ? 0 : 1; }

at::Tensor local_weight(const LocalArgs& args, const Segments& classes, AxisMask class_axes) {
  const auto weight = args.tensor("weight");
  if (!weight.defined() || shard_axes(args.spec("weight"), 0) == class_axes) return weight;
  TORCH_CHECK(
      shard_axes(args.spec("weight")) == 0,
      "nll_loss: expected a weight that is replicated or sharded on the mesh axes of the classes, got other axes");
  return select_segments(weight, 0, classes).contiguous();
}

// Whether all targets are valid classes. On the CPU it is one loop, since an operator call costs as much as some
// thousand comparisons.
bool are_classes(const at::Tensor& target, std::int64_t ignored, std::int64_t classes) {
  if (target.numel() == 0 || is_simulated(target)) return true;
  if (classes == 0) return target.eq(ignored).all().item<bool>();
  if (!target.is_cpu()) {
    return check_indices(target.masked_fill(target.eq(ignored), 0), classes, "nll_loss: target"), true;
  }
  const at::Tensor dense = target.contiguous();
  const auto* begin = dense.const_data_ptr<std::int64_t>();
  bool fit = true;
  for (const auto* t = begin; t != begin + dense.numel(); ++t) fit &= *t == ignored || (*t >= 0 && *t < classes);
  return fit;
}

void check_fit(bool fit, const LocalArgs& args) {
  TORCH_CHECK_INDEX(fit, "nll_loss: a target is out of bounds for a prediction of sizes ", args.global_sizes("self"));
}

Targets targets_of(const LocalArgs& args) {
  const auto self = args.tensor("self");
  const auto type = args.tensor("target").scalar_type();
  TORCH_CHECK(type == at::kLong || type == at::kByte, "expected target dtype to be Long or Byte, but got ", type);
  const std::int64_t dim = class_dim(self), classes = args.global_sizes("self")[dim];
  Targets t{args.tensor("target").to(at::kLong), args.tensor("weight"), args.integer("ignore_index"), 0, 0};
  t.class_axes = shard_axes(args.spec("self"), dim);
  t.batch_axes = shard_axes(args.spec("self")) & ~t.class_axes;
  t.fit = are_classes(t.target, t.ignore_index, classes);
  if (t.class_axes == 0 || !t.fit) return t;
  const auto segments = own_segments(args.spec("self"), dim, classes);
  const auto index = to_local_index(t.target, segments);
  const auto valid = t.target.ne(t.ignore_index);
  t.target = index.local.masked_fill(index.own.logical_and(valid).logical_not_(), kIgnored);
  t.ignore_index = kIgnored;
  t.weight = local_weight(args, segments, t.class_axes);
  return t;
}

std::tuple<at::Tensor, at::Tensor> loss_and_weight(const at::Tensor& self, const Targets& t, std::int64_t reduction) {
  const bool spatial = self.dim() > 2;
  return spatial ? at::nll_loss2d_forward(self, t.target, t.weight, reduction, t.ignore_index)
                 : at::nll_loss_forward(self, t.target, t.weight, reduction, t.ignore_index);
}

at::Tensor each_loss(const at::Tensor& self, const Targets& t) {
  return std::get<0>(loss_and_weight(self, t, at::Reduction::None));
}

// The sum of the weights of this rank's valid targets.
at::Tensor local_total_weight(const Targets& t, at::ScalarType type) {
  const auto valid = t.target.ne(t.ignore_index);
  if (!t.weight.defined() || t.weight.numel() == 0) return valid.sum(type);
  const auto index = t.target.masked_fill(valid.logical_not(), 0);
  return t.weight.to(type).take(index).masked_fill_(valid.logical_not(), 0).sum();
}

// The sum of the losses and of the weights of this rank's targets. Half types are summed in float, which ATen does not
// guarantee.
std::tuple<at::Tensor, at::Tensor> local_sums(const at::Tensor& self, const Targets& t) {
  const auto type = accumulate_type(self.scalar_type());
  if (type == self.scalar_type()) return loss_and_weight(self, t, at::Reduction::Sum);
  return {each_loss(self, t).sum(type), local_total_weight(t, type)};
}

// Reduces the loss on the CPU with C++ numbers, since each operator call on a small tensor costs more than this
// function.
void reduce_on_host(LocalCall& call, const LocalArgs& args, const Targets& t, AxisMask axes) {
  const auto self = args.tensor("self");
  double parts[3] = {0, 0, t.fit ? 0.0 : 1.0};
  if (t.fit) {
    const auto [loss, total] = local_sums(self, t);
    parts[0] = item_or(loss, 1.0), parts[1] = item_or(total, 1.0);
  }
  const auto type = accumulate_type(self.scalar_type());
  const auto sums =
      all_reduce(call.mesh, at::tensor(at::ArrayRef<double>(parts), type), ReduceOp::sum, axes).to(at::kDouble);
  const auto* sum = sums.const_data_ptr<double>();
  // With sharded targets only some ranks have the invalid target. The all_reduce reports it to all before any rank
  // throws.
  check_fit(sum[2] == 0, args);
  const double value = args.integer("reduction") == at::Reduction::Mean ? sum[0] / sum[1] : sum[0];
  const at::Tensor result = at::scalar_tensor(value, self.options());
  if (is_simulated(self)) forget_values(result);
  set_results(call, {result, at::scalar_tensor(sum[1], self.options())});
}

void nll_loss_forward(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self");
  const Targets t = targets_of(args);
  const auto reduction = args.integer("reduction");
  if (reduction == at::Reduction::None && self.dim() > 1) {  // for a single sample ATen returns the sum
    check_fit(t.fit, args);
    const auto loss = reduce_contribution(call, each_loss(self, t), ReduceOp::sum, t.class_axes);
    return set_results(call, {loss, at::zeros({}, self.options())});
  }
  const AxisMask axes = t.class_axes | t.batch_axes;
  if (self.is_cpu()) return reduce_on_host(call, args, t, axes);
  const auto [loss, weight] = local_sums(self, t);
  const auto sums = all_reduce(call.mesh, at::stack({loss, weight}), ReduceOp::sum, axes);
  const auto total = sums[1];
  const auto value = reduction == at::Reduction::Mean ? sums[0] / total : sums[0];
  set_results(call, {value.to(self.scalar_type()), total.to(self.scalar_type())});
}

// total_weight is global, so ATen's gradient of the local classes is correct.
void nll_loss_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self"), grad = args.tensor("grad_output"), total = args.tensor("total_weight");
  const auto reduction = args.integer("reduction");
  const Targets t = targets_of(args);
  check_fit(t.fit, args);
  const bool spatial = self.dim() > 2;
  set_results(call,
              {spatial ? at::nll_loss2d_backward(grad, self, t.target, t.weight, reduction, t.ignore_index, total)
                       : at::nll_loss_backward(grad, self, t.target, t.weight, reduction, t.ignore_index, total)});
}

// CTC loss over a sharded batch; sequences are independent. Lengths and concatenated targets are those of the global
// batch. The local call uses those of this rank's sequences.

struct Sequences {
  std::vector<std::int64_t> input_lengths, target_lengths;
  at::Tensor targets;  // 2-d rows, or concatenated
};

std::int64_t longest(const std::vector<std::int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

// The size of log_alpha's last dimension: one entry for each target and each blank around it.
std::int64_t paths(const std::vector<std::int64_t>& target_lengths) { return 2 * longest(target_lengths) + 1; }

std::vector<std::int64_t> begins_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> begins(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), begins.begin(), std::int64_t{0});
  return begins;
}

Sequences local_sequences(const LocalArgs& args) {
  const auto inputs = args.value("input_lengths").toIntVector(), targets = args.value("target_lengths").toIntVector();
  const std::int64_t batch = args.global_sizes("log_probs")[1];
  TORCH_CHECK(std::ssize(inputs) == batch && std::ssize(targets) == batch,
              "ctc_loss: expected input_lengths and target_lengths for a batch of ", batch, ", got ", inputs.size(),
              " and ", targets.size());
  Sequences own{{}, {}, args.tensor("targets")};
  const bool rows = own.targets.dim() == 2;
  std::vector<at::Tensor> parts;
  const auto begins = begins_of(targets);
  for (const Segment& s : own_segments(args.spec("log_probs"), 1, batch)) {
    for (auto i = static_cast<std::size_t>(s.offset); i < static_cast<std::size_t>(s.offset + s.length); ++i) {
      own.input_lengths.push_back(inputs[i]);
      own.target_lengths.push_back(targets[i]);
      if (!rows) parts.push_back(own.targets.narrow(0, begins[i], targets[i]));
    }
  }
  if (!rows && !parts.empty()) own.targets = at::cat(parts);
  return own;
}

void ctc_loss(LocalCall& call) {
  if (return_zeros_if_empty(call)) return;
  const LocalArgs args(call);
  const Sequences own = local_sequences(args);
  auto [loss, alpha] = at::_ctc_loss(args.tensor("log_probs"), own.targets, own.input_lengths, own.target_lengths,
                                     args.integer("blank"), args.flag("zero_infinity"));
  const std::int64_t missing = paths(args.value("target_lengths").toIntVector()) - alpha.size(2);
  if (missing > 0) alpha = at::constant_pad_nd(alpha, {0, missing}, -std::numeric_limits<double>::infinity());
  set_results(call, {loss, alpha});
}

void ctc_loss_backward(LocalCall& call) {
  if (return_zeros_if_empty(call)) return;
  const LocalArgs args(call);
  const Sequences own = local_sequences(args);
  const auto alpha = args.tensor("log_alpha").narrow(2, 0, paths(own.target_lengths)).contiguous();
  set_results(call, {at::_ctc_loss_backward(args.tensor("grad"), args.tensor("log_probs"), own.targets,
                                            own.input_lengths, own.target_lengths, args.tensor("neg_log_likelihood"),
                                            alpha, args.integer("blank"), args.flag("zero_infinity"))});
}

}  // namespace

void add_loss_kernels(LocalKernels& kernels) {
  kernels.emplace("margin_loss", margin_loss);
  kernels.emplace("loss_mean_global", loss_mean_global);
  kernels.emplace("loss_backward_global", loss_backward_global);
  kernels.emplace("nll_loss_forward", nll_loss_forward);
  kernels.emplace("nll_loss_backward", nll_loss_backward);
  kernels.emplace("ctc_loss_batch", ctc_loss);
  kernels.emplace("ctc_loss_backward_batch", ctc_loss_backward);
}

}  // namespace dtensor
