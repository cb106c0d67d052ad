// A stack of square layers with one unit for each layer, and helpers of the tests of its units.
#pragma once

#include "parallel_fsdp/model.h"

namespace dtensor::test {

// A stack of square layers, for counting.
struct Tower {
  std::vector<at::Tensor> w;
  explicit Tower(int layers, std::int64_t width = 6, at::ScalarType dtype = at::kDouble) {
    Draw draw(11);
    for (int i = 0; i < layers; ++i) w.push_back(draw.normal({width, width}, dtype).mul_(0.4).requires_grad_());
  }
  NamedTensors layer(int i) { return {{"w" + std::to_string(i), &w[static_cast<std::size_t>(i)]}}; }
  NamedTensors list() {
    NamedTensors all;
    for (int i = 0; i < static_cast<int>(w.size()); ++i) all.push_back(layer(i)[0]);
    return all;
  }
  std::vector<FsdpUnit> shard(const DeviceMesh& mesh, const FsdpOptions& options = {}) {
    std::vector<FsdpUnit> units;
    for (int i = 0; i < static_cast<int>(w.size()); ++i) units.push_back(fully_shard(layer(i), mesh, options));
    fully_shard(list(), mesh, options);  // Joins the units.
    return units;
  }
  at::Tensor loss(at::Tensor x, int skip = -1) const {
    for (int i = 0; i < static_cast<int>(w.size()); ++i) {
      if (i != skip) x = at::gelu(at::linear(x, w[static_cast<std::size_t>(i)]));
    }
    return x.square().mean();
  }
};

inline at::Tensor input(std::int64_t rows = 4, std::int64_t width = 6) { return Draw(5).normal({rows, width}); }
inline at::Tensor sharded(const at::Tensor& t, const DeviceMesh& mesh) {
  return distribute_tensor(t, mesh, {Shard(0)});
}

inline void expect_same_gradients(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto what = "gradient " + std::to_string(i);
    ASSERT_EQ(got[i].grad().defined(), expected[i].grad().defined()) << what;
    if (got[i].grad().defined()) expect_close(got[i].grad(), expected[i].grad(), what);
  }
}

}  // namespace dtensor::test
