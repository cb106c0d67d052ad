// Presets and families have the published numbers of parameters, and tables of hardware can be read.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "llm/hf/hf_config.h"
#include "llm/program.h"
#include "llm/usage_error.h"
#include "plan/decoder_cost.h"
#include "program_data.h"
#include "support/captured.h"
#include "support/folder.h"

namespace plan {
namespace {

const std::string kData = program_data("plan");

Workload preset(const std::string& name) { return {llm::read_family(kData + "/presets/" + name).config, 16, 4096}; }

// Billions of parameters, all and those that a token uses, as in the models' descriptions.
struct Published {
  const char* name;
  double all, active, tolerance;
};

TEST(Presets, HaveThePublishedNumbersOfParameters) {
  for (const auto& [name, all, active, tolerance] :
       {Published{"llama3-8b", 8.03, 8.03, 0.1}, Published{"llama3-70b", 70.55, 70.55, 0.3},
        Published{"llama3-405b", 405.9, 405.9, 1}, Published{"mixtral-8x7b", 46.7, 12.9, 0.1},
        Published{"qwen3-235b-a22b", 235.1, 22.2, 1}, Published{"deepseek-v3", 671, 37.6, 1}}) {
    const auto work = preset(name);
    const auto size = size_of(work);
    const auto embedding = static_cast<double>(work.model.vocabulary * work.model.hidden);
    EXPECT_NEAR(1e-9 * size.parameters, all, tolerance) << name;
    EXPECT_NEAR(1e-9 * (size.active_weights + embedding), active, tolerance) << name;
  }
}

// The config.json of a published model, of which only sizes are kept, and its number of parameters.
struct Model {
  const char* name;
  const char* config;
  std::int64_t parameters;
};

const std::vector<Model>& models() {
  static const std::vector<Model> all = {
      {"Phi-3-mini-4k",
       R"({"model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072, "num_hidden_layers": 32,
           "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32})",
       3'821'079'552},
      {"pythia-6.9b",
       R"({"model_type": "gpt_neox", "vocab_size": 50432, "hidden_size": 4096, "num_hidden_layers": 32,
           "intermediate_size": 16384, "num_attention_heads": 32, "rotary_pct": 0.25})",
       6'857'302'016},
      {"gpt-neox-20b",
       R"({"model_type": "gpt_neox", "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44,
           "intermediate_size": 24576, "num_attention_heads": 64, "rotary_pct": 0.25})",
       20'554'567'680},
      {"falcon-40b",
       R"({"model_type": "falcon", "vocab_size": 65024, "hidden_size": 8192, "num_hidden_layers": 60,
           "num_attention_heads": 128, "num_kv_heads": 8, "new_decoder_architecture": true})",
       41'303'293'952},
      {"DeepSeek-V2-Lite",
       R"({"model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048, "num_hidden_layers": 27,
           "intermediate_size": 10944, "num_attention_heads": 16, "kv_lora_rank": 512, "q_lora_rank": null,
           "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 64,
           "n_shared_experts": 2, "moe_intermediate_size": 1408, "num_experts_per_tok": 6, "first_k_dense_replace": 1})",
       15'706'484'224},
      {"granite-3.0-8b",
       R"({"model_type": "granite", "vocab_size": 49155, "hidden_size": 4096, "num_hidden_layers": 40,
           "intermediate_size": 12800, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": true,
           "residual_multiplier": 0.22})",
       8'170'848'256},
  };
  return all;
}

void write_config(const dtensor::test::Folder& folder, const std::string& text) {
  std::ofstream(folder / "config.json") << text;
}

TEST(Families, HaveThePublishedNumbersOfParameters) {
  for (const auto& [name, config, parameters] : models()) {
    const dtensor::test::Folder folder;
    write_config(folder, config);
    const auto family = llm::read_family(folder.str());
    EXPECT_EQ(size_of({family.config, 16, 4096}).parameters, static_cast<double>(parameters)) << name;
    const auto [status, out, error] =
        dtensor::test::run_captured({"llm", "generate", "--model", folder.str(), "--tokens", "1"}, llm::run_program);
    EXPECT_EQ(status, 2) << name;
    EXPECT_NE(error.find(family.plan_only + " of model_type '" + family.name + "'; `plan` does"), std::string::npos)
        << error;
  }
}

TEST(Families, NameTheFeatureThatNoDecoderHas) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {R"({"model_type": "olmo2"})", "norms of the outputs"},
      {R"({"model_type": "cohere"})", "one norm for attention and MLP"},
      {R"({"model_type": "gpt_oss"})", "attention sinks"},
      {R"({"model_type": "gemma3"})", "vision_config"},
      {R"({"model_type": "falcon", "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32,
           "num_attention_heads": 71, "multi_query": true, "parallel_attn": true})",
       "one norm for attention and MLP"},
      {R"({"model_type": "unknown"})", "model_type 'unknown' is not supported; expected one of deepseek_v2"}};
  for (const auto& [config, feature] : refused) {
    const dtensor::test::Folder folder;
    write_config(folder, config);
    try {
      llm::read_family(folder.str());
      ADD_FAILURE() << config;
    } catch (const llm::UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(feature), std::string::npos) << error.what();
    }
  }
}

TEST(Presets, HardwareTablesAreComplete) {
  for (const auto& entry : std::filesystem::directory_iterator(kData + "/hardware")) {
    const auto hardware = dtensor::HardwareModel::read(entry.path().string());
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (int kind = 0; kind < static_cast<int>(dtensor::StepTrace::Kind::collective); ++kind) {
        EXPECT_GT(hardware.seconds({.kind = static_cast<dtensor::StepTrace::Kind>(kind),
                                    .dtype = dtype,
                                    .flops = kind < 2 ? 1'000'000 : 0,
                                    .bytes = 1'000'000}),
                  0);
      }
    }
    EXPECT_GT(hardware.memory_bytes, 0);
    EXPECT_GT(hardware.memory_reserve, 0.05 * hardware.memory_bytes);
    EXPECT_LT(hardware.memory_reserve, 0.1 * hardware.memory_bytes);
  }
}

}  // namespace
}  // namespace plan
