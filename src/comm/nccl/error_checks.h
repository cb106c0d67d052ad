// Converts errors of CUDA and NCCL to CommError.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>

#include "dtensor/comm.h"

namespace dtensor::nccl {

inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw CommError(std::string(what) + ": " + cudaGetErrorString(code));
}

inline void check(ncclResult_t code, const char* what) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  throw CommError(std::string(what) + ": " + ncclGetErrorString(code) + ", " + ncclGetLastError(nullptr));
}

}  // namespace dtensor::nccl
