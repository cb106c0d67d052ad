// Families of models by the keys of their config.json, beside those that hf_config.cpp alone knows.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "dtensor/nn/decoder.h"

namespace llm {

// A size or a divisor. `otherwise` is the default for a missing key.
std::int64_t positive(const nlohmann::json& j, const char* key, std::optional<std::int64_t> otherwise = std::nullopt);
// Keys that families like Llama have in common.
dtensor::nn::DecoderConfig llama(const nlohmann::json& j);
dtensor::nn::DecoderConfig deepseek_v3(const nlohmann::json& j);

// Families whose shapes, parameters and FLOPs are those of a decoder, and why `llm` does not run them.
dtensor::nn::DecoderConfig gpt_neox(const nlohmann::json& j);
dtensor::nn::DecoderConfig falcon(const nlohmann::json& j);
dtensor::nn::DecoderConfig deepseek_v2(const nlohmann::json& j);
std::string phi3_plan_only(const nlohmann::json& j);
std::string granite_plan_only(const nlohmann::json& j);
std::string gpt_neox_plan_only(const nlohmann::json& j);
std::string falcon_plan_only(const nlohmann::json& j);
std::string deepseek_v2_plan_only(const nlohmann::json& j);

// Throws UsageError with the feature that no decoder of the library has, for families that are known not to fit.
void check_representable(const std::string& family);

}  // namespace llm
