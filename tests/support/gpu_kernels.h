// Runs the kernels that are written for GPUs on the CPU.
#pragma once

#include "dtensor/inspect.h"
#include "internal/kernels/gpu_kernels.h"

namespace dtensor::test {

// During its lifetime the CPU takes GPU kernels. Decisions that this thread has cached are forgotten; other ranks call
// clear_cache() themselves.
struct GpuKernelsOnCpu {
  GpuKernelsOnCpu() { set(true); }
  ~GpuKernelsOnCpu() { set(false); }
  GpuKernelsOnCpu(const GpuKernelsOnCpu&) = delete;
  GpuKernelsOnCpu& operator=(const GpuKernelsOnCpu&) = delete;

  static void set(bool takes) {
    set_takes_gpu_kernels(c10::DeviceType::CPU, takes);
    clear_cache();
  }
};

}  // namespace dtensor::test
