// The reference run of oracles/transformer.json, rebuilt: its parameters, its batches and its curves.
#pragma once

#include <ATen/ATen.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/data.h"
#include "train/data/hash.h"
#include "train/model/model.h"

namespace oracle {

inline constexpr std::int64_t kBatch = 8, kSequence = 16, kVocabulary = 257;

// float32(offset + scale * (double(h >> 40) / 2^23 - 1)), row-major.
inline at::Tensor fill(at::IntArrayRef sizes, std::uint64_t seed, double scale = 1, double offset = 0) {
  at::Tensor result = at::empty(sizes, at::kFloat);
  float* out = result.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < result.numel(); ++i) {
    const double unit = static_cast<double>(train::hash64(seed, i) >> 40) / 8388608.0 - 1.0;
    out[i] = static_cast<float>(offset + scale * unit);
  }
  return result;
}

struct Batch {
  at::Tensor ids, targets;
};

inline Batch batch(std::int64_t step) {
  at::Tensor ids = at::empty({kBatch, kSequence + 1}, at::kLong);
  for (std::int64_t b = 0; b < kBatch; ++b) {
    const std::int64_t row = step * kBatch + b;
    std::int64_t* out = ids.mutable_data_ptr<std::int64_t>() + b * (kSequence + 1);
    out[0] = static_cast<std::int64_t>(train::hash64(900, row) % kVocabulary);
    for (std::int64_t t = 0; t < kSequence; ++t) {
      const std::int64_t noise = train::hash64(901, row * kSequence + t) % 4 == 0;
      out[t + 1] = (5 * out[t] + 3 + noise) % kVocabulary;
    }
  }
  return {ids.narrow(1, 0, kSequence).contiguous(), ids.narrow(1, 1, kSequence).contiguous()};
}

inline const nlohmann::json& data() {
  static const nlohmann::json json =
      nlohmann::json::parse(std::ifstream(dtensor::test::data_path("oracles/transformer.json")));
  return json;
}

inline std::vector<double> curve(const char* name) { return data()["single"][name].get<std::vector<double>>(); }

// The model's name of a parameter of the reference.
inline std::string name_of(std::string reference) {
  static const std::vector<std::pair<std::string, std::string>> names = {
      {"wte.", "embed."},      {"h.", "layers."},         {".ln1.", ".attn_norm."}, {".ln2.", ".mlp_norm."},
      {".ffn1.", ".up_proj."}, {".ffn2.", ".down_proj."}, {"ln.", "norm."}};
  for (const auto& [old, name] : names) {
    const auto at = reference.find(old);
    if (at == 0 || (at != std::string::npos && old[0] == '.')) reference.replace(at, old.size(), name);
  }
  return reference;
}

// A model with the reference's initial parameters; their names and order are checked.
inline std::unique_ptr<train::Gpt> model(const train::GptConfig& config = train::tiny()) {
  const at::NoGradGuard no_grad;
  auto result = std::make_unique<train::Gpt>(config);
  const auto parameters = result->named_parameters();
  TORCH_CHECK(parameters.size() == data()["params"].size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const nlohmann::json& p = data()["params"][i];
    TORCH_CHECK(name_of(p["name"]) == parameters[i].first, parameters[i].first);
    parameters[i].second->copy_(fill(parameters[i].second->sizes(), p["seed"], p["scale"], p["offset"]));
  }
  return result;
}

}  // namespace oracle
