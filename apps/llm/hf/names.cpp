// The tables: renames, splits, stacks and transposes. A row without a model tensor skips the file's tensor.
#include "llm/hf/names.h"

#include <algorithm>

namespace llm {
namespace {

using dtensor::StateDictKeyMapping;
using dtensor::StateDictKeyRule;

// Rows of `first` replace rows of `rest` for the same tensors.
StateDictKeyMapping before(StateDictKeyMapping first, const StateDictKeyMapping& rest) {
  const StateDictKeyMapping own = first;
  for (const StateDictKeyRule& row : rest) {
    const auto same = [&](const StateDictKeyRule& other) { return !row.tensor.empty() && other.tensor == row.tensor; };
    if (std::none_of(own.begin(), own.end(), same)) first.push_back(row);
  }
  return first;
}

// Experts are packed in the model and separate in the file.
StateDictKeyMapping experts(const std::string& block, const std::string& w1, const std::string& w2,
                            const std::string& w3) {
  const std::string moe = "layers.*.moe.", there = "model.layers.*." + block + ".";
  return {{moe + "gate.weight", there + "gate.weight"},
          {moe + "experts.w1", there + "experts.#." + w1 + ".weight"},
          {moe + "experts.w2", there + "experts.#." + w2 + ".weight"},
          {moe + "experts.w3", there + "experts.#." + w3 + ".weight"}};
}

}  // namespace

StateDictKeyMapping llama_names() {
  return {{"embed.weight", "model.embed_tokens.weight"},
          {"layers.*.attn_norm.weight", "model.layers.*.input_layernorm.weight"},
          {"layers.*.attn.**", "model.layers.*.self_attn.**"},
          {"layers.*.mlp_norm.weight", "model.layers.*.post_attention_layernorm.weight"},
          {"layers.*.mlp.**", "model.layers.*.mlp.**"},
          {"norm.weight", "model.norm.weight"},
          {"lm_head.weight", "lm_head.weight"},
          {"", "**.rotary_emb.inv_freq"}};
}

StateDictKeyMapping gemma_names() {
  const std::string there = "model.layers.*.";
  return before({{"layers.*.attn_post_norm.weight", there + "post_attention_layernorm.weight"},
                 {"layers.*.mlp_norm.weight", there + "pre_feedforward_layernorm.weight"},
                 {"layers.*.mlp_post_norm.weight", there + "post_feedforward_layernorm.weight"}},
                llama_names());
}

StateDictKeyMapping mixtral_names() { return before(experts("block_sparse_moe", "w1", "w2", "w3"), llama_names()); }

StateDictKeyMapping qwen3_moe_names() {
  return before(experts("mlp", "gate_proj", "down_proj", "up_proj"), llama_names());
}

StateDictKeyMapping deepseek_v3_names(const dtensor::nn::DecoderConfig& config) {
  const std::string attn = "layers.*.attn.", there = "model.layers.*.self_attn.", moe = "layers.*.moe.";
  const std::string shared = "model.layers.*.mlp.shared_experts.";
  StateDictKeyMapping names = {
      {attn + "q_a_norm.weight", there + "q_a_layernorm.weight"},
      {attn + "kv_a_proj.*", there + "kv_a_proj_with_mqa.*"},
      {attn + "kv_a_norm.weight", there + "kv_a_layernorm.weight"},
      {moe + "balance", "model.layers.*.mlp.gate.e_score_correction_bias"},
      {moe + "shared.w1", shared + "gate_proj.weight"},
      {moe + "shared.w2", shared + "down_proj.weight"},
      {moe + "shared.w3", shared + "up_proj.weight"},
      {"", "model.layers." + std::to_string(config.layers) + ".**"},  // Multi-token prediction head; not used.
  };
  return before(std::move(names), qwen3_moe_names());
}

StateDictKeyMapping gpt2_names(const dtensor::nn::DecoderConfig& config, const std::string& prefix) {
  const std::string h = prefix + "h.*.", layer = "layers.*.";
  StateDictKeyMapping names = {
      {"embed.weight", prefix + "wte.weight"},
      {"lm_head.weight", "lm_head.weight"},
      {"positions.weight", prefix + "wpe.weight"},
      {"norm.*", prefix + "ln_f.*"},
      {layer + "attn_norm.*", h + "ln_1.*"},
      {layer + "mlp_norm.*", h + "ln_2.*"},
      {layer + "attn.o_proj.weight", h + "attn.c_proj.weight", true},
      {layer + "attn.o_proj.bias", h + "attn.c_proj.bias"},
      {layer + "mlp.up_proj.weight", h + "mlp.c_fc.weight", true},
      {layer + "mlp.up_proj.bias", h + "mlp.c_fc.bias"},
      {layer + "mlp.down_proj.weight", h + "mlp.c_proj.weight", true},
      {layer + "mlp.down_proj.bias", h + "mlp.c_proj.bias"},
      {"", h + "attn.bias"},
      {"", h + "attn.masked_bias"},
  };
  std::int64_t begin = 0;
  for (const char* part : {"q_proj", "k_proj", "v_proj"}) {  // One matrix in the file, [hidden, 3 hidden].
    const std::string ours = layer + "attn." + part;
    names.push_back({ours + ".weight", h + "attn.c_attn.weight", true, {1, begin, config.hidden}});
    names.push_back({ours + ".bias", h + "attn.c_attn.bias", false, {0, begin, config.hidden}});
    begin += config.hidden;
  }
  return names;
}

}  // namespace llm
