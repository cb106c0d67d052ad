// Fixture for tests on meshes of thread ranks that share a GPU.
#pragma once

#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include "dtensor/comm.h"
#include "dtensor/mesh.h"

namespace dtensor::test {

// Skips tests without a GPU.
class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

}  // namespace dtensor::test
