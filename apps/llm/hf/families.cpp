// Families that `plan` knows and `llm` does not run, and families whose parameters no decoder of the library has.
#include "llm/hf/families.h"

#include <fmt/format.h>

#include <map>

#include "llm/hf/rope_config.h"
#include "llm/usage_error.h"

namespace llm {

using dtensor::nn::Activation;
using dtensor::nn::DecoderConfig;
using Json = nlohmann::json;

namespace {

DecoderConfig layer_normed(const Json& j, double eps) {
  DecoderConfig c;
  c.vocabulary = j.at("vocab_size");
  c.hidden = positive(j, "hidden_size");
  c.layers = positive(j, j.contains("n_layer") ? "n_layer" : "num_hidden_layers");
  c.heads = positive(j, j.contains("n_head") ? "n_head" : "num_attention_heads");
  c.head_size = c.hidden / c.heads;
  c.norm = dtensor::nn::NormKind::layer;
  c.norm_eps = eps;
  c.activation = Activation::gelu;
  c.gated = false;
  return c;
}

}  // namespace

DecoderConfig gpt_neox(const Json& j) {
  DecoderConfig c = layer_normed(j, value_or(j, "layer_norm_eps", 1e-5));
  c.ffn = positive(j, "intermediate_size");
  c.tied = value_or(j, "tie_word_embeddings", false);
  c.qkv_bias = c.o_bias = value_or(j, "attention_bias", true);
  c.mlp_bias = true;
  auto rope = rope_of(j, c.head_size);
  rope.size = static_cast<std::int64_t>(static_cast<double>(c.head_size) * value_or(j, "rotary_pct", 0.25));
  rope.base = value_or(j, "rotary_emb_base", rope.base);
  c.ropes = {rope};
  return c;
}

DecoderConfig falcon(const Json& j) {
  DecoderConfig c = layer_normed(j, value_or(j, "layer_norm_epsilon", 1e-5));
  c.ffn = positive(j, "ffn_hidden_size", 4 * c.hidden);
  const bool grouped = value_or(j, "new_decoder_architecture", false), parallel = value_or(j, "parallel_attn", true);
  if (value_or<std::int64_t>(j, "num_ln_in_parallel_attn", grouped || !parallel ? 2 : 1) < 2) {
    throw UsageError("config.json: one norm for attention and MLP (parallel_attn) is not supported");
  }
  const char* const kv_key = j.contains("n_head_kv") ? "n_head_kv" : "num_kv_heads";
  c.kv_heads = grouped ? positive(j, kv_key, c.heads) : value_or(j, "multi_query", true) ? 1 : c.heads;
  c.tied = value_or(j, "tie_word_embeddings", true);
  c.qkv_bias = c.o_bias = c.mlp_bias = value_or(j, "bias", false);
  if (!value_or(j, "alibi", false)) c.ropes = {rope_of(j, c.head_size)};
  return c;
}

DecoderConfig deepseek_v2(const Json& j) {
  DecoderConfig c = deepseek_v3(j);
  c.experts->router.score = dtensor::RouterScore::softmax;
  c.experts->router.normalize = value_or(j, "norm_topk_prob", false);
  c.experts->balance_rate = 0;
  const auto every = positive(j, "moe_layer_freq", 1);
  for (std::size_t i = 0; i < c.layer.size(); ++i) {
    c.layer[i].experts = c.layer[i].experts && static_cast<std::int64_t>(i) % every == 0;
  }
  return c;
}

std::string phi3_plan_only(const Json&) { return "tensors qkv_proj and gate_up_proj of several projections"; }
std::string granite_plan_only(const Json&) { return "residual_multiplier and logits_scaling"; }
std::string gpt_neox_plan_only(const Json& j) {
  return value_or(j, "use_parallel_residual", true) ? "use_parallel_residual" : "tensors query_key_value by head";
}
std::string falcon_plan_only(const Json& j) {
  return value_or(j, "alibi", false) ? "alibi" : "attention and MLP side by side (parallel_attn)";
}
std::string deepseek_v2_plan_only(const Json& j) {
  return "the router's topk_method " + value_or<std::string>(j, "topk_method", "greedy");
}

void check_representable(const std::string& family) {
  static const std::map<std::string, const char*> features = {
      {"olmo2", "norms of the outputs of attention and MLP without norms of their inputs"},
      {"cohere", "one norm for attention and MLP side by side"},
      {"cohere2", "one norm for attention and MLP side by side"},
      {"gpt_oss", "attention sinks and biases of experts"},
      {"gemma3", "vision_config: an encoder of images; the language model alone has the model_type 'gemma3_text'"},
  };
  const auto found = features.find(family);
  if (found == features.end()) return;
  throw UsageError(fmt::format("config.json: model_type '{}' is not supported: {}", family, found->second));
}

}  // namespace llm
