// The flag --device of the examples.
#pragma once

#include <ATen/Context.h>
#include <c10/core/Device.h>

#include <CLI/CLI.hpp>
#include <string>

#include "dtensor/comm.h"

namespace device_flag {

inline void add(CLI::App& app, std::string& device) {
  app.add_option("--device", device, "device of tensors: cpu or cuda; default: cuda over NCCL, otherwise cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}));
}

// The device as text: the requested one, or the default of this backend.
inline std::string resolve(const std::string& requested, const std::string& backend) {
  return !requested.empty() ? requested : backend == "nccl" ? "cuda" : "cpu";
}

// The reason why ranks of this backend cannot compute on the device; empty if they can.
inline std::string find_error(const std::string& device, const std::string& backend) {
  if (device == "cpu") return backend == "nccl" ? "--device cpu: NCCL needs --device cuda" : "";
  if (!at::hasCUDA()) return "--device cuda: no GPU, or a build without CUDA (make build PRESET=cuda)";
  if (backend == "nccl" || backend == "local") return "";
  return "--device cuda: " + backend + " ranks communicate CPU tensors only; use --backend nccl or thread ranks";
}

inline c10::DeviceType type_of(const std::string& device) { return device == "cuda" ? c10::kCUDA : c10::kCPU; }

// For programs without usage errors of their own: the device type, or c10::Error with the reason.
inline c10::DeviceType of(const std::string& requested, const dtensor::Communicator& world) {
  const std::string device = resolve(requested, world.backend_name());
  const std::string error = find_error(device, world.backend_name());
  TORCH_CHECK(error.empty(), error);
  return type_of(device);
}

}  // namespace device_flag
