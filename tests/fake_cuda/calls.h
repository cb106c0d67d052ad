// NCCL and CUDA calls of a test that throw on errors.
#pragma once

#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <string>
#include <vector>

#include "fake_cuda/device/memory.h"
#include "fake_cuda/device/ranks.h"

namespace dtensor::test::fake_cuda {

inline void ok(cudaError_t error) { TORCH_CHECK(error == cudaSuccess, cudaGetErrorString(error)); }
inline void ok(ncclResult_t result) {
  TORCH_CHECK(result == ncclSuccess, ncclGetErrorString(result), ": ", ncclGetLastError(nullptr));
}

inline cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// Makes `later` wait for what `earlier` holds now.
inline void order(cudaStream_t earlier, cudaStream_t later) {
  cudaEvent_t event = nullptr;
  ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  ok(cudaEventRecord(event, earlier));
  ok(cudaStreamWaitEvent(later, event, 0));
  ok(cudaEventDestroy(event));
}

// A communicator of all ranks of the run.
inline ncclComm_t world(const ncclUniqueId& id, int ranks, int rank) {
  ncclComm_t comm = nullptr;
  ok(ncclCommInitRank(&comm, ranks, id, rank));
  return comm;
}

inline ncclUniqueId new_id() {
  ncclUniqueId id;
  ok(ncclGetUniqueId(&id));
  return id;
}

// Device memory of `n` floats.
struct Floats {
  explicit Floats(std::size_t n, float value = 0) : memory(Memory::instance().allocate(n * sizeof(float))) {
    std::fill(data(), data() + n, value);
  }
  float* data() const { return static_cast<float*>(memory.get()); }
  c10::DataPtr memory;
};

// Expects one error that contains all texts.
inline void expect_error(const std::vector<std::string>& errors, const std::vector<std::string>& texts) {
  const bool found = std::any_of(errors.begin(), errors.end(), [&](const std::string& error) {
    return std::all_of(texts.begin(), texts.end(),
                       [&](const std::string& text) { return error.find(text) != std::string::npos; });
  });
  EXPECT_TRUE(found) << ::testing::PrintToString(texts) << "\nin\n" << ::testing::PrintToString(errors);
}
inline void expect_none(const std::vector<std::string>& errors) {
  EXPECT_TRUE(errors.empty()) << ::testing::PrintToString(errors);
}

constexpr std::chrono::milliseconds kShort{200};

}  // namespace dtensor::test::fake_cuda
