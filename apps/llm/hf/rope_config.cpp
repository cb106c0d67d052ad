// rope_parameters, or rope_theta and rope_scaling.
#include "llm/hf/rope_config.h"

#include <fmt/format.h>

#include <map>

#include "llm/usage_error.h"

namespace llm {
namespace {

using dtensor::nn::RopeOptions;
using dtensor::nn::RopeScaling;
using Json = nlohmann::json;

RopeScaling scaling_of(const std::string& name) {
  static const std::map<std::string, RopeScaling> known = {
      {"default", RopeScaling::none}, {"linear", RopeScaling::linear},     {"dynamic", RopeScaling::dynamic},
      {"yarn", RopeScaling::yarn},    {"longrope", RopeScaling::longrope}, {"llama3", RopeScaling::llama3}};
  const auto found = known.find(name);
  if (found == known.end()) throw UsageError(fmt::format("config.json: rope type '{}' is not supported", name));
  return found->second;
}

// Merges all keys into one object.
Json parameters_of(const Json& config, const std::string& kind) {
  if (config.contains("rope_parameters") && config["rope_parameters"].is_object()) {
    const Json& all = config["rope_parameters"];
    return !kind.empty() && all.contains(kind) ? all[kind] : all;
  }
  const bool local = kind == "sliding_attention" && config.contains("rope_local_base_freq");
  Json parameters = Json::object();
  if (!local && config.contains("rope_scaling") && config["rope_scaling"].is_object()) {
    parameters = config["rope_scaling"];
  }
  parameters["rope_theta"] = local ? config["rope_local_base_freq"] : Json(value_or(config, "rope_theta", 10000.0));
  return parameters;
}

}  // namespace

RopeOptions rope_of(const Json& config, std::int64_t head_size, const std::string& kind) {
  const Json p = parameters_of(config, kind);
  RopeOptions o;
  o.size = static_cast<std::int64_t>(static_cast<double>(head_size) * value_or(p, "partial_rotary_factor", 1.0));
  o.base = value_or(p, "rope_theta", 10000.0);
  o.max_positions = value_or<std::int64_t>(config, "max_position_embeddings", 0);
  o.scaling = scaling_of(value_or<std::string>(p, "rope_type", value_or<std::string>(p, "type", "default")));
  const auto outside = value_or(config, "original_max_position_embeddings", o.max_positions);
  o.original_positions = value_or(p, "original_max_position_embeddings", outside);
  const double stretched =
      static_cast<double>(o.max_positions) / static_cast<double>(std::max<std::int64_t>(1, o.original_positions));
  o.factor = value_or(p, "factor", o.scaling == RopeScaling::none ? 1.0 : stretched);
  o.beta_fast = value_or(p, "beta_fast", 32.0), o.beta_slow = value_or(p, "beta_slow", 1.0);
  o.truncate = value_or(p, "truncate", true);
  o.mscale = value_or(p, "mscale", 0.0), o.mscale_all_dim = value_or(p, "mscale_all_dim", 0.0);
  o.low_frequency = value_or(p, "low_freq_factor", 1.0), o.high_frequency = value_or(p, "high_freq_factor", 4.0);
  o.short_factors = value_or<std::vector<double>>(p, "short_factor", {});
  o.long_factors = value_or<std::vector<double>>(p, "long_factor", {});
  if (const double factor = value_or(p, "attention_factor", -1.0); factor >= 0) o.attention_factor = factor;
  return o;
}

}  // namespace llm
