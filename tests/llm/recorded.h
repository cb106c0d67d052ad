// The recorded models of tests/data/llm.tar.xz, and one of them on a mesh.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "dtensor/dtensor.h"
#include "llm/commands/logits.h"
#include "llm/model.h"
#include "support/data.h"

namespace recorded {

inline std::string folder(const std::string& name) { return dtensor::test::data_path("llm/" + name); }

inline nlohmann::json read(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

// Results of transformers (tools/llm/make.py).
struct Expected {
  std::vector<std::int64_t> tokens, greedy;
  at::Tensor logits;  // [tokens, vocabulary] float64
  nlohmann::json all;
};

inline Expected expected(const std::string& name) {
  const auto j = read(folder(name) + "/expected.json");
  Expected e{j.at("tokens"), j.at("greedy"), {}, j};
  e.logits = at::tensor(j.at("logits").get<std::vector<double>>(), at::kDouble)
                 .view({static_cast<std::int64_t>(e.tokens.size()), -1});
  return e;
}

inline llm::Model model(const std::string& name, const llm::MeshSizes& sizes, const dtensor::Communicator& world,
                        const llm::ModelOptions& options = {}) {
  const auto family = llm::read_family(folder(name));
  auto made = llm::make_model(family, llm::fit_mesh(sizes, world.size(), family), world, options);
  llm::load_parameters(made, family, folder(name), world);
  return made;
}

inline const std::vector<std::string>& families() {
  static const std::vector<std::string> names = {"llama2", "llama3",  "mistral",   "qwen2",       "qwen3", "gemma2",
                                                 "gemma3", "mixtral", "qwen3_moe", "deepseek_v3", "gpt2"};
  return names;
}

inline bool has_experts(const std::string& name) {
  return name == "mixtral" || name == "qwen3_moe" || name == "deepseek_v3";
}

}  // namespace recorded
