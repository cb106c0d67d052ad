// What the opaque handles of the C interface hold, and the checks of pointers that callers pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "dtensor/c/dtensor.h"
#include "dtensor/mesh.h"
#include "dtensor/nn.h"
#include "dtensor/optim/optimizer.h"
#include "dtensor/tensor.h"

struct dtensor_mesh {
  dtensor::DeviceMesh mesh;
};

struct dtensor_tensor {
  dtensor::DTensor tensor;
  at::Tensor local = {};        // what dtensor_tensor_local returned
  std::string placements = {};  // what dtensor_tensor_placements returned
};

struct dtensor_module {
  dtensor::DeviceMesh mesh;
  std::shared_ptr<dtensor::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
  dtensor::NamedTensors parameters = module->named_parameters();
  bool fully_sharded = false;
};

struct dtensor_optimizer {
  dtensor::DeviceMesh mesh;
  std::unique_ptr<dtensor::Optimizer> optimizer;
};

namespace dtensor::c {

// The object behind a pointer of the caller. `what` is its name in the error.
template <class T>
T& required(T* pointer, const char* what) {
  TORCH_CHECK_VALUE(pointer != nullptr, "expected a ", what, ", got a null pointer");
  return *pointer;
}

// A new handle of a tensor on a mesh.
inline dtensor_tensor* new_tensor(at::Tensor tensor) { return new dtensor_tensor{DTensor(std::move(tensor))}; }

}  // namespace dtensor::c
