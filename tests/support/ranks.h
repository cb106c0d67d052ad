// Thread ranks for tests: meshes for properties, random placements, and comparisons that name the rank.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "dtensor/dtensor.h"
#include "layouts.h"

namespace dtensor::test {

inline int count(const Shape& shape) {
  return static_cast<int>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

// Runs body on every rank of a mesh of that shape.
inline void on_mesh(const Shape& shape, const std::function<void(const DeviceMesh&)>& body) {
  run_local(count(shape), [&](Communicator world) { body(init_device_mesh(world, at::kCPU, shape)); });
}

// Random draws that are equal on every rank.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  std::int64_t integer(std::int64_t low, std::int64_t high) {  // Inclusive.
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  std::mt19937_64& engine() { return engine_; }
  bool coin() { return integer(0, 1) == 1; }
  Shape sizes(std::int64_t ndim, std::int64_t low = 0, std::int64_t high = 7) {
    Shape result(static_cast<std::size_t>(ndim));
    for (auto& size : result) size = integer(low, high);
    return result;
  }
  at::Tensor normal(const Shape& sizes, at::ScalarType dtype = at::kDouble) {
    auto values = at::empty(sizes, at::kDouble);
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < values.numel(); ++i) values.mutable_data_ptr<double>()[i] = normal(engine_);
    return values.to(dtype);
  }
  at::Tensor integers(const Shape& sizes, std::int64_t high) {
    auto values = at::empty(sizes, at::kLong);
    for (std::int64_t i = 0; i < values.numel(); ++i) values.mutable_data_ptr<std::int64_t>()[i] = integer(0, high - 1);
    return values;
  }
  // Replicate, any Shard, and Partial if requested.
  Placements placements(const DeviceMesh& mesh, std::int64_t tensor_ndim, bool partial = true) {
    Placements result;
    for (std::int64_t axis = 0; axis < mesh.ndim(); ++axis) {
      const auto pick = integer(-2, tensor_ndim - 1);
      if (pick >= 0) {
        result.push_back(Shard(pick));
      } else {
        result.push_back(pick == -2 && partial ? Partial() : Replicate());
      }
    }
    return result;
  }

  // The same for a tensor of these sizes, also with ragged and zigzag shards.
  Placements placements_of(const DeviceMesh& mesh, at::IntArrayRef sizes, bool partial = true) {
    return replace_some_shards(placements(mesh, static_cast<std::int64_t>(sizes.size()), partial), mesh, sizes);
  }
  Placements replace_some_shards(const Placements& chunks, const DeviceMesh& mesh, at::IntArrayRef sizes) {
    return replace_some_shards_of(chunks, sizes, mesh.shape(), engine_);
  }

 private:
  std::mt19937_64 engine_;
};

inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& what,
                         double tolerance = 1e-9) {
  auto regular = is_dtensor(actual) ? DTensor(actual).full_tensor() : actual;
  ASSERT_EQ(regular.sizes(), expected.sizes()) << what;
  ASSERT_EQ(regular.scalar_type(), expected.scalar_type()) << what;
  const bool close = at::allclose(regular.to(at::kDouble), expected.to(at::kDouble), tolerance, tolerance, true);
  EXPECT_TRUE(close) << what << "\nexpected\n" << expected << "\nactual\n" << regular;
}

}  // namespace dtensor::test
