// The current device and streams of this thread.
#pragma once

#include "fake_cuda/device/simulator.h"

namespace dtensor::test::fake_cuda {

int current_device();
void set_current_device(int device);

// Index of the current stream of the device; 0 is the default stream.
int current_stream_index(int device);
void set_current_stream_index(int device, int index);

// Requires the simulator's lock.
CUstream_st& current_stream(int device);

// The kernel that this thread runs, or null. Copies and allocations in it are part of the kernel.
extern thread_local const std::string* current_kernel;

}  // namespace dtensor::test::fake_cuda
