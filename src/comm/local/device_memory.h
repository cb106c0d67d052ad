// Tensors of thread ranks that lie in a device's memory, on one GPU or several: ATen's kernels move and reduce them,
// each on the current stream of the rank that reads. Streams of different ranks know nothing of each other, so the host
// waits for its own before peers may look, and again before they may go on.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::local {

// Whether thread ranks move tensors of this device type: the host's memory, or a device whose streams can be waited
// for.
bool supports_device(c10::DeviceType device);

// Waits until the current streams of the tensors' devices have done what they were given; at once for the host's
// memory.
void synchronize_streams(at::TensorList tensors);

// to[...] = from[...], any strides, also between two devices. Not recorded by autograd.
void copy_across_devices(const at::Tensor& to, const at::Tensor& from);

// Whether the first of them, and so all, lie in a device's memory; no for none.
bool on_device(at::TensorList tensors);

}  // namespace dtensor::local
