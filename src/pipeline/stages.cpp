// Splits models into stages, and batches into microbatches.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtensor/pipeline.h"

namespace dtensor::pipeline {

// Dynamic programming: highest_cost[k][n] is the minimal cost of the most expensive of k stages with the first n
// layers.
std::vector<int> balanced_stages(const std::vector<double>& costs, int stages) {
  const std::size_t layers = costs.size(), count = static_cast<std::size_t>(std::max(stages, 0));
  TORCH_CHECK(stages > 0 && count <= layers, "balanced_stages: expected 1 to ", layers, " stages for ", layers,
              " layers, got ", stages);
  std::vector<double> upto(layers + 1);
  for (std::size_t i = 0; i < layers; ++i) {
    upto[i + 1] = upto[i] + costs[i];
    TORCH_CHECK(costs[i] >= 0 && std::isfinite(upto[i + 1]), "balanced_stages: layer ", i, " costs ", costs[i],
                "; expected non-negative costs with a finite sum");
  }
  const double never = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> highest_cost(count + 1, std::vector<double>(layers + 1, never));
  std::vector<std::vector<std::size_t>> begin(count + 1, std::vector<std::size_t>(layers + 1));
  highest_cost[0][0] = 0;
  for (std::size_t k = 1; k <= count; ++k) {
    for (std::size_t n = k; n <= layers; ++n) {
      for (std::size_t first = k - 1; first < n; ++first) {
        const double cost = std::max(highest_cost[k - 1][first], upto[n] - upto[first]);
        if (cost < highest_cost[k][n]) {
          highest_cost[k][n] = cost;
          begin[k][n] = first;
        }
      }
    }
  }
  std::vector<int> stage_of(layers);
  for (std::size_t k = count, end = layers; k > 0; end = begin[k][end], --k) {
    for (std::size_t i = begin[k][end]; i < end; ++i) stage_of[i] = static_cast<int>(k) - 1;
  }
  return stage_of;
}

StageFunction stage_of_layers(const std::vector<Layer>& layers, const std::vector<int>& stage_of, int stage) {
  TORCH_CHECK(layers.size() == stage_of.size(), "stage_of_layers: expected a stage for each of ", layers.size(),
              " layers, got ", stage_of.size());
  std::vector<StageFunction> own;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    TORCH_CHECK(i == 0 || stage_of[i] >= stage_of[i - 1], "stage_of_layers: expected ascending stages, got ",
                stage_of[i], " for layer ", layers[i].name, " after ", stage_of[i - 1]);
    if (stage_of[i] == stage) own.push_back(layers[i].forward);
  }
  return [own](const Tensors& inputs) {
    Tensors x = inputs;
    for (const StageFunction& layer : own) x = layer(x);
    return x;
  };
}

WeightFunction rows() {
  return [](const Tensors& targets) { return static_cast<double>(targets.at(0).size(0)); };
}

WeightFunction valid_targets(std::int64_t ignore_index) {
  return [ignore_index](const Tensors& targets) {
    return static_cast<double>(targets.at(0).ne(ignore_index).sum().item<std::int64_t>());
  };
}

std::vector<at::Tensor> microbatches(const at::Tensor& batch, int count) {
  TORCH_CHECK(batch.dim() > 0 && count > 0 && count <= batch.size(0),
              "microbatches: expected a batch with at least one row per microbatch, got sizes ", batch.sizes(), " and ",
              count, " microbatches");
  return at::tensor_split(batch, count, 0);
}

}  // namespace dtensor::pipeline
