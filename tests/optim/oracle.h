// The recorded trajectories of oracles/optim.json: problems, optimizers and losses.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/data.h"
#include "support/ranks.h"

namespace dtensor::test {

inline std::uint64_t hash64(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t z = ((seed << 32) + i + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// float32(offset + scale * (double(h >> 40) / 2^23 - 1)), row-major.
inline at::Tensor fill(at::IntArrayRef sizes, std::uint64_t seed, double scale = 1, double offset = 0) {
  at::Tensor result = at::empty(sizes, at::kFloat);
  float* out = result.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < result.numel(); ++i) {
    const double unit = static_cast<double>(hash64(seed, static_cast<std::uint64_t>(i)) >> 40) / 8388608.0 - 1.0;
    out[i] = static_cast<float>(offset + scale * unit);
  }
  return result;
}

inline const nlohmann::json& optim_data() {
  static const nlohmann::json json = nlohmann::json::parse(std::ifstream(test::data_path("oracles/optim.json")));
  return json;
}

// Least squares with a gradient in closed form: |WX - Y|^2 / 2K for a matrix, sum d (w - y)^2 / 2n for a vector.
struct Problem {
  Shape shape;
  at::Tensor start, x, y;

  Problem(Shape s, std::uint64_t j, at::ScalarType dtype) : shape(std::move(s)) {
    constexpr std::int64_t k = 24;
    start = fill(shape, 100 + j, 0.5).to(dtype);
    const bool matrix = shape.size() == 2;
    x = (matrix ? fill({shape[1], k}, 110 + j) : fill(shape, 110 + j, 0.5, 1)).to(dtype);
    y = (matrix ? fill({shape[0], k}, 120 + j) : fill(shape, 120 + j)).to(dtype);
  }
  double size() const { return shape.size() == 2 ? 24.0 : static_cast<double>(shape[0]); }
  at::Tensor error(const at::Tensor& w) const { return shape.size() == 2 ? w.mm(x) - y : w - y; }
  double loss(const at::Tensor& w) const {
    const at::Tensor e = error(w).square();
    return (0.5 / size() * (shape.size() == 2 ? e : x * e).sum()).item<double>();
  }
  at::Tensor gradient(const at::Tensor& w) const {
    return (shape.size() == 2 ? error(w).mm(x.t()) : x * error(w)) / size();
  }
  std::string name() const {
    return shape.size() == 2 ? std::to_string(shape[0]) + "x" + std::to_string(shape[1]) : std::to_string(shape[0]);
  }
};

inline std::vector<Problem> problems(at::ScalarType dtype, bool matrices_only = false) {
  std::vector<Problem> result{{{8, 6}, 0, dtype}, {{5, 12}, 1, dtype}};
  if (!matrices_only) result.emplace_back(Shape{7}, 2, dtype);
  return result;
}

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const std::vector<at::Tensor>&)>;

struct Config {
  const char* name;
  MakeOptimizer make;
  bool matrices_only = false;
  double tolerance = 1e-6;  // Of float32 against the recorded float32.
};

inline const std::vector<Config>& configs() {
  const auto shampoo = [](ShampooOptions o) -> MakeOptimizer {
    return [o](const auto& p) { return std::make_unique<Shampoo>(p, o); };
  };
  const auto muon = [](MuonOptions o) -> MakeOptimizer {
    return [o](const auto& p) { return std::make_unique<Muon>(p, o); };
  };
  static const std::vector<Config> all{
      {"adamw",
       [](const auto& p) {
         return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.05, .beta2 = 0.95, .weight_decay = 0.1});
       }},
      {"sgd_momentum", [](const auto& p) { return std::make_unique<SGD>(p, SGDOptions{.lr = 0.2, .momentum = 0.9}); }},
      {"sgd_nesterov_wd",
       [](const auto& p) {
         return std::make_unique<SGD>(p,
                                      SGDOptions{.lr = 0.2, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
       }},
      {"shampoo_graft_adam_freq1", shampoo({.lr = 0.05, .eps = 1e-6, .frequency = 1, .start = 1}), false, 5e-5},
      {"shampoo_graft_adam_freq3_start4", shampoo({.lr = 0.05, .eps = 1e-6, .frequency = 3, .start = 4}), false, 5e-5},
      {"shampoo_graft_adam_eps1e-12", shampoo({.lr = 0.05, .eps = 1e-12, .frequency = 1, .start = 1}), false, 0.2},
      {"shampoo_no_graft",
       shampoo({.lr = 0.05, .eps = 1e-4, .weight_decay = 0.01, .grafting = Grafting::none, .frequency = 1, .start = 1}),
       false, 1e-5},
      {"shampoo_no_graft_adagrad_sum",
       shampoo(
           {.lr = 0.05, .beta1 = 0, .beta2 = 1, .eps = 1e-4, .grafting = Grafting::none, .frequency = 1, .start = 1}),
       false, 1e-5},
      {"muon", muon({.bfloat16 = false}), true},
      {"muon_wd_no_nesterov", muon({.weight_decay = 0.1, .nesterov = false, .bfloat16 = false}), true},
      {"muon_bf16", muon({}), true},
  };
  return all;
}

}  // namespace dtensor::test
