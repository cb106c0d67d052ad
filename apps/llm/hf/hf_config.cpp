// Converts the config.json of each family.
#include "llm/hf/hf_config.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "dtensor/checkpoint.h"
#include "input_file.h"
#include "llm/commands/export.h"
#include "llm/hf/families.h"
#include "llm/hf/names.h"
#include "llm/hf/rope_config.h"
#include "llm/usage_error.h"

namespace llm {

using dtensor::nn::Activation;
using dtensor::nn::DecoderConfig;
using Json = nlohmann::json;

namespace {

Json read_json(const std::filesystem::path& path) {
  auto file = input_file::open<UsageError>("", path);
  try {
    return Json::parse(file);
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

Activation activation_of(const Json& j) {
  static const std::map<std::string, Activation> known = {{"silu", Activation::silu},
                                                          {"swish", Activation::silu},
                                                          {"gelu", Activation::gelu},
                                                          {"gelu_new", Activation::gelu_tanh},
                                                          {"gelu_pytorch_tanh", Activation::gelu_tanh},
                                                          {"relu", Activation::relu}};
  const char* const keys[] = {"hidden_activation", "hidden_act", "activation_function"};
  for (const char* key : keys) {
    const auto name = value_or<std::string>(j, key, "");
    if (name.empty()) continue;
    const auto found = known.find(name);
    if (found == known.end()) throw UsageError(fmt::format("config.json: {} '{}' is not supported", key, name));
    return found->second;
  }
  return Activation::silu;
}

}  // namespace

std::int64_t positive(const Json& j, const char* key, std::optional<std::int64_t> otherwise) {
  const std::int64_t n = otherwise ? value_or<std::int64_t>(j, key, *otherwise) : j.at(key).get<std::int64_t>();
  if (n <= 0) throw UsageError(fmt::format("config.json: expected {} of at least 1, got {}", key, n));
  return n;
}

DecoderConfig llama(const Json& j) {
  DecoderConfig c;
  c.vocabulary = j.at("vocab_size");
  c.hidden = j.at("hidden_size");
  c.layers = positive(j, "num_hidden_layers");
  c.ffn = positive(j, "intermediate_size");
  c.heads = positive(j, "num_attention_heads");
  c.kv_heads = value_or<std::int64_t>(j, "num_key_value_heads", c.heads);
  c.head_size = value_or<std::int64_t>(j, "head_dim", c.hidden / c.heads);
  c.norm_eps = value_or(j, "rms_norm_eps", 1e-6);
  c.activation = activation_of(j);
  c.tied = value_or(j, "tie_word_embeddings", false);
  c.qkv_bias = c.o_bias = value_or(j, "attention_bias", false);
  c.mlp_bias = value_or(j, "mlp_bias", false);
  c.ropes = {rope_of(j, c.head_size)};
  c.layer.assign(static_cast<std::size_t>(c.layers), {});
  return c;
}

namespace {

// windowed(i): whether layer i has a window if config.json does not list its layers.
void set_windows(const Json& j, DecoderConfig& c, const std::function<bool(std::int64_t)>& windowed) {
  const auto window = value_or<std::int64_t>(j, "sliding_window", 0);
  const auto types = value_or<std::vector<std::string>>(j, "layer_types", {});
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const bool slides = at < types.size() ? types[at] == "sliding_attention" : windowed(i);
    if (slides) c.layer[at].window = window;
  }
}

DecoderConfig mistral(const Json& j) {
  DecoderConfig c = llama(j);
  set_windows(j, c, [](std::int64_t) { return true; });
  return c;
}

DecoderConfig qwen2(const Json& j) {
  DecoderConfig c = llama(j);
  c.qkv_bias = true, c.o_bias = false;
  const auto full = value_or<std::int64_t>(j, "max_window_layers", c.layers);
  const bool slides = value_or(j, "use_sliding_window", false);
  set_windows(j, c, [&](std::int64_t i) { return slides && i >= full; });
  return c;
}

DecoderConfig qwen3(const Json& j) {
  DecoderConfig c = qwen2(j);
  c.qkv_bias = c.o_bias = value_or(j, "attention_bias", false);
  c.qk_norm = true;
  return c;
}

DecoderConfig gemma(const Json& j) {
  DecoderConfig c = llama(j);
  c.norm = dtensor::nn::NormKind::rms_offset;
  c.post_norms = true;
  c.tied = value_or(j, "tie_word_embeddings", true);
  c.embedding_scale = std::sqrt(static_cast<double>(c.hidden));
  c.attention_scale = 1 / std::sqrt(value_or(j, "query_pre_attn_scalar", 256.0));
  c.attention_softcap = value_or(j, "attn_logit_softcapping", 0.0);
  c.logit_softcap = value_or(j, "final_logit_softcapping", 0.0);
  return c;
}

DecoderConfig gemma2(const Json& j) {
  DecoderConfig c = gemma(j);
  set_windows(j, c, [](std::int64_t i) { return i % 2 == 0; });
  return c;
}

DecoderConfig gemma3(const Json& j) {
  DecoderConfig c = gemma(j);
  c.qk_norm = true;
  const auto pattern =
      positive(j, j.contains("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern", 6);
  set_windows(j, c, [&](std::int64_t i) { return (i + 1) % pattern != 0; });
  c.ropes = {rope_of(j, c.head_size, "full_attention"), rope_of(j, c.head_size, "sliding_attention")};
  for (auto& layer : c.layer) layer.rope = layer.window > 0 ? 1 : 0;
  return c;
}

dtensor::MoeOptions experts(const Json& j, const char* count, std::int64_t ffn) {
  dtensor::MoeOptions moe;
  moe.ffn = ffn;
  moe.router.experts = value_or<std::int64_t>(j, count, value_or<std::int64_t>(j, "num_local_experts", 8));
  moe.router.top_k = j.at("num_experts_per_tok");
  moe.router.normalize = true;
  return moe;
}

DecoderConfig mixtral(const Json& j) {
  DecoderConfig c = mistral(j);
  c.experts = experts(j, "num_local_experts", c.ffn);
  for (auto& layer : c.layer) layer.experts = true;
  return c;
}

DecoderConfig qwen3_moe(const Json& j) {
  DecoderConfig c = qwen3(j);
  c.experts = experts(j, "num_experts", j.at("moe_intermediate_size"));
  c.experts->router.normalize = value_or(j, "norm_topk_prob", false);
  const auto step = positive(j, "decoder_sparse_step", 1);
  const auto dense = value_or<std::vector<std::int64_t>>(j, "mlp_only_layers", {});
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const bool listed = std::find(dense.begin(), dense.end(), i) != dense.end();
    c.layer[static_cast<std::size_t>(i)].experts = !listed && (i + 1) % step == 0;
  }
  return c;
}

}  // namespace

DecoderConfig deepseek_v3(const Json& j) {
  DecoderConfig c = llama(j);
  auto& latent = c.latent.emplace();
  latent.q_rank = value_or<std::int64_t>(j, "q_lora_rank", 0);
  latent.kv_rank = j.at("kv_lora_rank");
  latent.rope_size = j.at("qk_rope_head_dim");
  latent.nope_size = j.at("qk_nope_head_dim");
  latent.value_size = j.at("v_head_dim");
  c.kv_heads = c.heads;
  c.head_size = latent.nope_size + latent.rope_size;
  auto& rope = c.ropes[0] = rope_of(j, latent.rope_size);
  rope.interleaved = value_or(j, "rope_interleave", true);
  c.attention_scale = 1 / std::sqrt(static_cast<double>(c.head_size));
  if (rope.scaling != dtensor::nn::RopeScaling::none && rope.mscale_all_dim != 0 && rope.factor > 1) {
    const double scale = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1;
    c.attention_scale *= scale * scale;
  }
  auto& moe = c.experts.emplace(experts(j, "n_routed_experts", j.at("moe_intermediate_size")));
  moe.router.score = dtensor::RouterScore::sigmoid;
  moe.router.normalize = value_or(j, "norm_topk_prob", true);
  moe.router.scale = value_or(j, "routed_scaling_factor", 1.0);
  moe.router.groups = value_or<std::int64_t>(j, "n_group", 1);
  moe.router.top_groups = value_or<std::int64_t>(j, "topk_group", 1);
  moe.shared_ffn = moe.ffn * value_or<std::int64_t>(j, "n_shared_experts", 0);
  moe.balance_rate = 1e-3;  // Creates the bias.
  const auto dense = value_or<std::int64_t>(j, "first_k_dense_replace", 0);
  for (std::int64_t i = 0; i < c.layers; ++i) c.layer[static_cast<std::size_t>(i)].experts = i >= dense;
  return c;
}

namespace {

DecoderConfig gpt2(const Json& j) {
  DecoderConfig c;
  c.vocabulary = j.at("vocab_size");
  c.hidden = j.at("n_embd");
  c.layers = positive(j, "n_layer");
  c.heads = positive(j, "n_head");
  c.ffn = positive(j, "n_inner", 4 * c.hidden);
  c.learned_positions = j.at("n_positions");
  c.norm = dtensor::nn::NormKind::layer;
  c.norm_eps = value_or(j, "layer_norm_epsilon", 1e-5);
  c.activation = activation_of(j);
  c.gated = false;
  c.qkv_bias = c.o_bias = c.mlp_bias = true;
  c.tied = value_or(j, "tie_word_embeddings", true);
  if (!value_or(j, "scale_attn_weights", true)) c.attention_scale = 1;
  if (value_or(j, "scale_attn_by_inverse_layer_idx", false)) {
    throw UsageError("config.json: scale_attn_by_inverse_layer_idx is not supported");
  }
  return c;
}

bool has_prefix(const std::string& folder) {
  if (!has_weights(folder)) return false;
  const auto entries = dtensor::read_checkpoint_index(folder).entries;
  return std::any_of(entries.begin(), entries.end(), [](const auto& e) { return e.name.starts_with("transformer."); });
}

struct Known {
  std::function<DecoderConfig(const Json&)> config;
  std::function<dtensor::StateDictKeyMapping(const DecoderConfig&, const std::string& folder)> names;
  std::function<std::string(const Json&)> plan_only = {};  // of Family; none: empty
};

const std::map<std::string, Known>& families() {
  const auto fixed = [](dtensor::StateDictKeyMapping (*names)()) {
    return [names](const DecoderConfig&, const std::string&) { return names(); };
  };
  static const std::map<std::string, Known> known = {
      {"llama", {llama, fixed(llama_names)}},
      {"mistral", {mistral, fixed(llama_names)}},
      {"qwen2", {qwen2, fixed(llama_names)}},
      {"qwen3", {qwen3, fixed(llama_names)}},
      {"gemma2", {gemma2, fixed(gemma_names)}},
      {"gemma3_text", {gemma3, fixed(gemma_names)}},
      {"mixtral", {mixtral, fixed(mixtral_names)}},
      {"qwen3_moe", {qwen3_moe, fixed(qwen3_moe_names)}},
      {"deepseek_v3", {deepseek_v3, [](const DecoderConfig& c, const std::string&) { return deepseek_v3_names(c); }}},
      {"phi3", {llama, nullptr, phi3_plan_only}},
      {"granite", {llama, nullptr, granite_plan_only}},
      {"gpt_neox", {gpt_neox, nullptr, gpt_neox_plan_only}},
      {"falcon", {falcon, nullptr, falcon_plan_only}},
      {"deepseek_v2", {deepseek_v2, nullptr, deepseek_v2_plan_only}},
      {"gpt2", {gpt2, [](const DecoderConfig& c, const std::string& folder) {
                  return gpt2_names(c, has_prefix(folder) ? "transformer." : "");
                }}}};
  return known;
}

void add_end_tokens(const Json& j, std::vector<std::int64_t>& tokens) {
  const auto it = j.find("eos_token_id");
  if (it == j.end() || it->is_null()) return;
  tokens = it->is_array() ? it->get<std::vector<std::int64_t>>() : std::vector<std::int64_t>{it->get<std::int64_t>()};
}

}  // namespace

Family read_family(const std::string& folder) {
  const std::filesystem::path path(folder);
  const Json j = read_json(path / "config.json");
  Family family;
  try {
    family.name = j.value("model_type", "");
    check_representable(family.name);
    const auto known = families().find(family.name);
    if (known == families().end()) {
      std::string served;
      for (const auto& [name, unused] : families()) served += (served.empty() ? "" : ", ") + name;
      throw UsageError(fmt::format("{}/config.json: model_type '{}' is not supported; expected one of {}", folder,
                                   family.name, served));
    }
    family.config = known->second.config(j);
    if (known->second.names) family.names = known->second.names(family.config, folder);
    if (known->second.plan_only) family.plan_only = known->second.plan_only(j);
    family.max_positions = value_or<std::int64_t>(j, "max_position_embeddings", family.config.learned_positions);
    add_end_tokens(j, family.end_tokens);
    if (std::filesystem::exists(path / "generation_config.json")) {
      add_end_tokens(read_json(path / "generation_config.json"), family.end_tokens);
    }
    family.config = family.config.checked();
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("{}/config.json: {}", folder, error.what()));
  } catch (const c10::Error& error) {
    throw UsageError(fmt::format("{}: {}", folder, error.what_without_backtrace()));
  }
  return family;
}

}  // namespace llm
