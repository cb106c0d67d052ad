// The objects behind the opaque handles of the C interface. A handle is a number that is looked up and never
// dereferenced, and no number is used twice. So a freed or foreign handle is an error. Exported for the library
// dtensor_torchscript.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/c/dtensor.h"
#include "dtensor/mesh.h"
#include "dtensor/nn.h"
#include "dtensor/optim/optimizer.h"
#include "dtensor/tensor.h"

namespace dtensor::c {

enum class Kind : std::uint8_t { mesh, tensor, module, optimizer, graph };

struct Mesh {
  static constexpr Kind kKind = Kind::mesh;
  DeviceMesh mesh;
};

struct Tensor {
  static constexpr Kind kKind = Kind::tensor;
  DTensor tensor;
  DeviceMesh mesh = tensor.mesh();
  at::Tensor local = {};        // what dtensor_tensor_local returned
  std::string placements = {};  // what dtensor_tensor_placements returned
};

constexpr int kMaxTensors = 256;  // of a list
using TensorVector = std::vector<at::Tensor>;
using ForwardFn = std::function<TensorVector(const TensorVector&)>;

struct Module {
  static constexpr Kind kKind = Kind::module;
  DeviceMesh mesh;
  std::shared_ptr<nn::Module> module;
  ForwardFn forward;
  std::function<void(bool)> train;                    // sets the mode
  std::function<void(const std::string&)> save = {};  // writes a TorchScript file; empty: the module is none
  NamedTensors parameters = module->named_parameters();
  bool fully_sharded = false;
};

struct Optimizer {
  static constexpr Kind kKind = Kind::optimizer;
  DeviceMesh mesh;
  std::unique_ptr<dtensor::Optimizer> optimizer;
};

// A new handle of `object`, whose calls are collective over `ranks`.
DTENSOR_API void* register_object(std::shared_ptr<void> object, Kind kind, const Communicator& ranks);
// The object of a handle. Throws c10::ValueError with the name `what` if the handle is null, freed, foreign or of
// another kind.
DTENSOR_API void* find_object(const void* handle, Kind kind, const char* what);
// Accepts null.
void free_object(const void* handle, Kind kind);
// The communicator of a handle of any kind; empty if it is invalid.
Communicator communicator_of(const void* handle);

inline Mesh& object(const dtensor_mesh* handle) { return *static_cast<Mesh*>(find_object(handle, Kind::mesh, "mesh")); }
inline Tensor& object(const dtensor_tensor* handle, const char* what = "tensor") {
  return *static_cast<Tensor*>(find_object(handle, Kind::tensor, what));
}
inline Module& object(const dtensor_module* handle) {
  return *static_cast<Module*>(find_object(handle, Kind::module, "module"));
}
inline Optimizer& object(const dtensor_optimizer* handle) {
  return *static_cast<Optimizer*>(find_object(handle, Kind::optimizer, "optimizer"));
}

// A handle of a new object.
template <class Handle, class Object>
Handle* new_handle(Object object) {
  const Communicator ranks = object.mesh.communicator();
  return static_cast<Handle*>(register_object(std::make_shared<Object>(std::move(object)), Object::kKind, ranks));
}
inline dtensor_tensor* new_tensor(at::Tensor tensor) {
  return new_handle<dtensor_tensor>(Tensor{DTensor(std::move(tensor))});
}
// The tensors of a list of 1 to 256 handles.
TensorVector tensors_of(int count, const dtensor_tensor* const* handles, const char* what);

// What a pointer of the caller refers to. `what` is its name in the error.
template <class T>
T& required(T* pointer, const char* what) {
  TORCH_CHECK_VALUE(pointer != nullptr, "expected a ", what, ", got a null pointer");
  return *pointer;
}

}  // namespace dtensor::c
