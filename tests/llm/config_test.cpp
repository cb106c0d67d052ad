// Invalid sizes in config.json raise an error with the key and the value.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "llm/hf/hf_config.h"
#include "llm/usage_error.h"
#include "support/folder.h"

namespace {

// A negative number of layers must not reach the size of a std::vector.
TEST(Config, SizesBelowOneAreRefused) {
  const dtensor::test::Folder folder;
  const nlohmann::json llama = {{"model_type", "llama"},       {"vocab_size", 8},        {"hidden_size", 8},
                                {"num_hidden_layers", 1},      {"intermediate_size", 8}, {"num_attention_heads", 2},
                                {"max_position_embeddings", 8}};
  const nlohmann::json gpt2 = {{"model_type", "gpt2"}, {"vocab_size", 8}, {"n_embd", 8},
                               {"n_layer", 1},         {"n_head", 2},     {"n_positions", 8}};
  const auto reported = [&](nlohmann::json config, const char* key, int size) -> std::string {
    config[key] = size;
    std::ofstream(folder / "config.json") << config;
    try {
      llm::read_family(folder.str());
    } catch (const llm::UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  for (const int size : {-1, 0}) {
    for (const char* key : {"num_hidden_layers", "intermediate_size"}) {
      EXPECT_NE(reported(llama, key, size).find(key), std::string::npos) << reported(llama, key, size);
    }
    for (const char* key : {"n_layer", "n_inner"}) {
      EXPECT_NE(reported(gpt2, key, size).find(key), std::string::npos) << reported(gpt2, key, size);
    }
  }
  EXPECT_EQ(reported(llama, "num_hidden_layers", 2), "accepted");
}

}  // namespace
