// The table of operators whose bits can be independent of the mesh: how each is cut. Sums are cut into the leaves of a
// tree over the global index, by a local kernel. Row operators keep their rows. All others throw.
#include "sharding_prop/bit_identical/forms.h"

#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKey.h>

#include "sharding_prop/bit_identical/form_table.h"

namespace dtensor {
namespace {

// On other devices each element is computed by the same code, wherever it is.
bool on_cpu(const OpCall& call) { return call.mesh->device == c10::kCPU; }

bool is_half(c10::ScalarType type) { return type == c10::kHalf || type == c10::kBFloat16; }

// What a local kernel would reduce over ranks stays unsharded.
Rule rows(const OpCall&, const Rule& ordinary) {
  RuleData data = ordinary.data();
  for (Factor& factor : data.factors) factor.unsharded |= factor.sharded_by_kernel;
  for (Pack& pack : data.packs) pack.each.unsharded |= pack.each.sharded_by_kernel;
  data.batch.unsharded |= data.batch.sharded_by_kernel;
  return Rule(std::move(data));
}

// ATen's kernels of the CPU depend on the threads along another dimension than the last.
Rule softmax(const OpCall& call, const Rule& ordinary, const char* of_device) {
  return rows(call, ordinary).kernel(on_cpu(call) ? "last_dimension" : of_device);
}

Rule layer_norm(const OpCall& call, const Rule& ordinary) {
  return on_cpu(call) ? rows(call, ordinary) : rows(call, ordinary).kernel("tree_layer_norm");
}

Rule softmax_backward(const OpCall& call, const Rule& ordinary) {
  return rows(call, ordinary).kernel("tree_softmax_backward");
}

// Elements of a partial vector are computed by other code than those of a full one.
Rule vectors(const OpCall& call, const Rule& ordinary) {
  return on_cpu(call) ? Rule(ordinary).kernel("full_vectors") : ordinary;
}

// ATen multiplies by alpha before or after rounding to a half type, depending on the position.
Rule sum_of_two(const OpCall& call, const Rule& ordinary) {
  return is_half(call.outputs.at(0).dtype) ? vectors(call, ordinary) : ordinary;
}

// Factors of the contracted dimensions are cut at multiples of the block.
Rule tiles(const OpCall& call, Rule rule, std::string_view contracted, const char* kernel) {
  RuleData data = rule.sharded_by_kernel(contracted, kernel).kernel(kernel).kernel_gives_replicate().data();
  for (Factor& factor : data.factors) {
    if (contracted.find(factor.name) != std::string_view::npos) factor.block = call.block;
  }
  return Rule(std::move(data));
}

Rule tree(Rule rule, std::string_view summed, const char* kernel) {
  return rule.sharded_by_kernel(summed, kernel).kernel(kernel).kernel_gives_replicate();
}

Rule product(const OpCall& call, const char* text) { return tiles(call, text, "k", "tiled_product"); }

Rule linear(const OpCall& call, const Rule&) { return tiles(call, "...k, nk, n -> ...n", "k", "tiled_linear"); }

// Blocks of tokens end with each row of the last batch dimension, so the others are cut anywhere.
Rule linear_backward(const OpCall& call, const Rule&) {
  const auto rank = std::max<std::size_t>(call.sizes(1).size(), 1);  // operand 0 is absent where nothing needs it
  TORCH_CHECK(rank <= 8, "linear_backward in a BitIdentical scope: expected at most 8 dimensions, got ", rank);
  const std::string batch = std::string("abcdefg").substr(0, rank - 1);
  Rule rule(batch + "k, " + batch + "n, nk -> " + batch + "k@12, nk@01, n@1");
  rule.sharded_by_kernel(batch + "n", "tiled_linear_backward").kernel("tiled_linear_backward").kernel_gives_replicate();
  RuleData data = rule.data();
  for (Factor& factor : data.factors) {
    if (factor.name == "n" || (!batch.empty() && factor.name[0] == batch.back())) factor.block = call.block;
  }
  return Rule(std::move(data));
}

// Each rank has all keys. Rows of queries do not depend on each other.
Rule attention(const OpCall&, const Rule&) {
  Rule rule("b(hg)le!, bhs!e, bhs!f!, b(hg)ls -> b(hg)lf, b(hg)l");
  return rule.nonempty("bhgl").sharded_by_kernel("l", "tiled_attention").kernel("tiled_attention");
}

// Gradients of keys and values are sums over blocks of queries, and over the heads of a group.
Rule attention_backward(const OpCall& call, const Rule&) {
  Rule rule("b(hg)lf!, b(hg)le!, bhs!e, bhsf, b(hg)lf, b(hg)l, b(hg)ls -> b(hg)le, bhse, bhsf");
  return tiles(call, rule.nonempty("bhl").unsharded("g"), "l", "tiled_attention_backward");
}

Rule sum(const OpCall&, const Rule&) { return tree("X[dim] -> X[dim?]*", "dim", "tree_sum"); }
Rule mean(const OpCall&, const Rule&) { return tree("X[dim] -> X[dim?]*", "dim", "tree_mean"); }

Rule layer_norm_backward(const OpCall&, const Rule&) {
  Rule rule("N D, N D, N D=_, N D=_, D, D -> N D, D, D; D = normalized_shape");
  return tree(rule.unsharded("D"), "N", "tree_layer_norm_backward");
}

Rule rms_norm_backward(const OpCall&, const Rule&) {
  return tree("N D!, N D, N D=_, D -> N D, D; D = normalized_shape", "N", "tree_rms_norm_backward");
}

Rule nll_loss(const OpCall&, const Rule&) {
  return tree("nc!S, nS, c -> , | nc!S, nS, c -> nS, | c!, , c -> , ", "nS", "tree_nll_loss");
}

Rule mse_loss(const OpCall& call, const Rule& ordinary) {
  if (call.integer("reduction") == at::Reduction::None) return vectors(call, ordinary);
  TORCH_CHECK_NOT_IMPLEMENTED(call.sizes(0).equals(call.sizes(1)), call.info->name(), " of sizes ", call.sizes(0),
                              " and ", call.sizes(1), ", which broadcast, has no bit-identical form");
  return tree("..., ... -> ", "...", "tree_mse_loss");
}

// The kernel divides by the global count, also where nothing is sharded.
Rule mse_loss_backward(const OpCall&, const Rule& ordinary) { return Rule(ordinary).kernel("loss_backward_global"); }

// The kernels of lists have no full vectors; these are exact for types of at least 32 bits.
Rule wide_list(const OpCall& call, const Rule& ordinary) {
  for (const Operand& operand : call.operands) {
    TORCH_CHECK_NOT_IMPLEMENTED(!operand.defined || !is_half(operand.dtype), call.info->name(), " of ", operand.dtype,
                                " has no bit-identical form; keep such lists in float32");
  }
  return ordinary;
}

Rule fused_optimizer(const OpCall& call, const Rule& ordinary) {
  return on_cpu(call) ? Rule(ordinary).kernel("fused_optimizer") : ordinary;
}

Rule list_norm(const OpCall&, const Rule&) { return tree(Rule("X -> ").foreach_op(), "X", "tree_list_norm"); }

// clang-format off
void add_views(FormTable& table) {
  add_form(table, exact_form,
      {"aten::alias", "aten::detach", "aten::lift", "aten::lift_fresh", "aten::contiguous", "aten::_fw_primal",
       "aten::t", "aten::transpose", "aten::unsqueeze", "aten::unbind", "aten::select", "aten::slice", "aten::split",
       "aten::chunk", "aten::unsafe_split", "aten::unsafe_chunk", "aten::narrow", "aten::split_with_sizes",
       "aten::unsafe_split_with_sizes", "aten::diagonal", "aten::unfold", "aten::view", "aten::_unsafe_view",
       "aten::_reshape_alias", "aten::reshape", "aten::_reshape_copy", "aten::permute", "aten::expand",
       "aten::squeeze", "aten::view_as_real", "aten::view_as_complex"});
}

void add_copies(FormTable& table) {
  add_form(table, exact_form,
      {"aten::clone", "aten::_lazy_clone", "aten::_to_copy", "aten::copy", "aten::copy_", "aten::zero", "aten::fill",
       "aten::cat", "aten::_cat", "aten::stack", "aten::_stack", "aten::flip", "aten::roll", "aten::repeat",
       "aten::constant_pad_nd", "aten::tril", "aten::triu", "aten::slice_backward", "aten::select_backward",
       "aten::diagonal_backward", "aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::new_zeros",
       "aten::new_ones", "aten::new_full", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided",
       "aten::index_select", "aten::gather", "aten::index", "aten::where", "aten::masked_fill",
       "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::_is_all_true", "aten::_is_any_true",
       "aten::nonzero", "aten::searchsorted", "aten::bucketize", "aten::arange"});
}
// clang-format on

void add_exact_elementwise(FormTable& table) {
  add_form(
      table, exact_form,
      {"aten::mul",         "aten::div.Tensor",  "aten::div.Scalar",     "aten::neg",       "aten::positive",
       "aten::abs",         "aten::sqrt",        "aten::relu",           "aten::threshold", "aten::threshold_backward",
       "aten::maximum",     "aten::minimum",     "aten::clamp",          "aten::clamp_min", "aten::clamp_max",
       "aten::sign",        "aten::floor",       "aten::ceil",           "aten::round",     "aten::trunc",
       "aten::bitwise_not", "aten::logical_not", "aten::native_dropout", "aten::uniform_",  "aten::uniform",
       "aten::normal_",     "aten::bernoulli_",  "aten::rand_like",      "aten::randn_like"});
  add_form(table, vectors,
           {"aten::gelu_backward", "aten::silu_backward", "aten::sigmoid_backward", "aten::tanh_backward",
            "aten::logit_backward", "aten::elu_backward", "aten::hardtanh_backward", "aten::hardsigmoid_backward",
            "aten::hardswish_backward", "aten::hardswish", "aten::leaky_relu_backward", "aten::mish_backward",
            "aten::softplus_backward", "aten::softshrink_backward", "aten::native_dropout_backward"});
  add_form(table, sum_of_two, {"aten::add", "aten::sub", "aten::rsub"});
  add_form(table, exact_form,
           {"aten::_foreach_mul", "aten::_foreach_div", "aten::_foreach_sqrt", "aten::_foreach_neg",
            "aten::_foreach_abs", "aten::_foreach_copy", "aten::_foreach_copy_", "aten::_foreach_zero",
            "aten::_foreach_zero_", "aten::_foreach_clone"});
  add_form(table, wide_list,
           {"aten::_foreach_add", "aten::_foreach_sub", "aten::_foreach_lerp", "aten::_foreach_addcmul",
            "aten::_foreach_addcdiv"});
  add_form(table, fused_optimizer, {"aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_"});
}

void add_rows(FormTable& table) {
  add_form(table, rows,
           {"aten::nll_loss_backward", "aten::nll_loss2d_backward", "aten::embedding", "aten::amax", "aten::amin",
            "aten::max", "aten::min", "aten::argmax", "aten::argmin", "aten::any", "aten::all"});
  table.emplace("aten::native_layer_norm", layer_norm);
  table.emplace("aten::_softmax",
                [](const auto& call, const auto& rule) { return softmax(call, rule, "tree_softmax"); });
  table.emplace("aten::_safe_softmax",
                [](const auto& call, const auto& rule) { return softmax(call, rule, "tree_safe_softmax"); });
  table.emplace("aten::_log_softmax",
                [](const auto& call, const auto& rule) { return softmax(call, rule, "tree_log_softmax"); });
  table.emplace("aten::_log_softmax_backward_data",
                [](const auto& call, const auto& rule) { return softmax(call, rule, "tree_log_softmax_backward"); });
  table.emplace("aten::_softmax_backward_data", softmax_backward);
}

// ATen's kernels of a GPU select among equal elements (topk) and write equal indices (scatter) in any order. Their sums
// of windows are atomic, and rows depend on addresses.
void add_cpu_only(FormTable& table) {
  add_form(table, rows, {"aten::_fused_rms_norm", "aten::topk", "aten::scatter"});
  table.emplace("aten::_fused_rms_norm_backward", rms_norm_backward);
  table.emplace("aten::_scaled_dot_product_flash_attention_for_cpu", attention);
  table.emplace("aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward);
  add_image_forms(table);
}

void add_sums(FormTable& table) {
  table.emplace("aten::mm", [](const OpCall& call, const Rule&) { return product(call, "mk, kn -> mn"); });
  table.emplace("aten::mv", [](const OpCall& call, const Rule&) { return product(call, "mk, k -> m"); });
  table.emplace("aten::dot", [](const OpCall& call, const Rule&) { return product(call, "k, k -> "); });
  table.emplace("aten::bmm", [](const OpCall& call, const Rule&) { return product(call, "bmk, bkn -> bmn"); });
  table.emplace("aten::addmm", [](const OpCall& call, const Rule&) { return product(call, "mn, mk, kn -> mn"); });
  table.emplace("aten::baddbmm", [](const OpCall& call, const Rule&) { return product(call, "bmn, bmk, bkn -> bmn"); });
  table.emplace("aten::linear", linear);
  table.emplace("aten::linear_backward", linear_backward);
  table.emplace("aten::sum", sum);
  table.emplace("aten::mean", mean);
  table.emplace("aten::_foreach_norm", list_norm);
  table.emplace("aten::native_layer_norm_backward", layer_norm_backward);
  add_form(table, nll_loss, {"aten::nll_loss_forward", "aten::nll_loss2d_forward"});
  table.emplace("aten::mse_loss", mse_loss);
  table.emplace("aten::mse_loss_backward", mse_loss_backward);
}

FormTable table_of(bool cpu) {
  FormTable all;
  add_views(all);
  add_copies(all);
  add_exact_elementwise(all);
  add_rows(all);
  add_sums(all);
  add_index_sum_forms(all);
  if (cpu) add_cpu_only(all);
  return all;
}

const FormTable& table_of(const OpCall& call) {
  static const FormTable cpu = table_of(true), others = table_of(false);
  return on_cpu(call) ? cpu : others;
}

bool returns_floating(const OpCall& call) {
  return std::any_of(call.outputs.begin(), call.outputs.end(), [](const OutputMeta& output) {
    return output.defined && (c10::isFloatingType(output.dtype) || c10::isComplexType(output.dtype));
  });
}

// By the operator's name with overload, its name, and the name of its functional form.
Form find_form(const OpCall& call) {
  const OpInfo& info = *call.info;
  for (const std::string& name : {c10::toString(info.name()), info.name().name, base_name(info)}) {
    const auto found = table_of(call).find(name);
    if (found != table_of(call).end()) return found->second;
  }
  if (!info.op.hasTag(at::Tag::pointwise)) return nullptr;
  return returns_floating(call) ? vectors : exact_form;
}

bool multiplies_leaves(c10::DeviceType device) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("dtensor::multiply_leaves", "");
  return op.hasKernelForDispatchKey(c10::computeDispatchKey(std::nullopt, std::nullopt, c10::Device(device)));
}

}  // namespace

void check_bit_identical_operands(const OpCall& call) {
  for (const Operand& operand : call.operands) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !operand.spec || !operand.spec->has_partial, call.info->name(),
        " in a BitIdentical scope: expected operands that are not Partial, whose shares depend ", "on the mesh, got ",
        operand.spec ? operand.spec->str() : "none", ". Reduce it before the scope begins.");
  }
}

Rule bit_identical_rule(const OpCall& call, const Rule& ordinary) {
  const auto device = call.mesh->device;
  TORCH_CHECK_NOT_IMPLEMENTED(multiplies_leaves(device), call.info->name(), " has no bit-identical form on ", device,
                              ": expected the CPU, or CUDA with the library dtensor_cuda and its kernels");
  const Form form = find_form(call);
  TORCH_CHECK_NOT_IMPLEMENTED(form != nullptr, call.info->name(), " has no bit-identical form on ", device,
                              " (docs/design/bit_identical.md). Run it outside the BitIdentical scope, where its bits ",
                              "depend on the mesh.");
  RuleData data = expand_packs(form(call, ordinary), call).data();
  data.groups.clear();
  return Rule(std::move(data));
}

}  // namespace dtensor
