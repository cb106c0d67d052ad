// Tensors of thread ranks in device memory, on one GPU or several. ATen's kernels move and reduce them on the current
// stream of the reading rank. Streams of different ranks are not synchronized with each other, so the host waits for
// its own stream before peers read, and again before peers continue.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::local {

// Whether thread ranks support tensors of this device type: host memory, or a device whose streams can be
// synchronized.
bool supports_device(c10::DeviceType device);

// Waits until the current streams of the tensors' devices are idle; returns at once for host memory.
void synchronize_streams(at::TensorList tensors);

// to[...] = from[...] with any strides, also between two devices. Not recorded by autograd.
void copy_across_devices(const at::Tensor& to, const at::Tensor& from);

// Whether the first tensor, and so all of them, is in device memory; false for an empty list.
bool on_device(at::TensorList tensors);

}  // namespace dtensor::local
