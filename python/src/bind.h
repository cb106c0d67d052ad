// Shared by the files of the module _C: one bind function for each part of the interface, and binding helpers.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/dtensor.h"

namespace dtensor::python {

namespace py = pybind11;

// For functions that compute or wait for other ranks: releases the GIL. Otherwise other thread ranks could not reach
// the collective that the caller waits in.
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

// ReleaseGil for py::init. A call guard on py::init would also register the new object in pybind11's instance table
// without the GIL, and concurrent thread ranks would corrupt it ("deallocate unregistered instance").
template <class Result, class... Args>
auto without_gil(Result (*make)(Args...)) {
  return [make](Args... args) {
    const py::gil_scoped_release no_gil;
    return make(std::forward<Args>(args)...);
  };
}

using Named = std::vector<std::pair<std::string, at::Tensor>>;

void bind_errors(py::module_& module);
void bind_placement(py::module_& module);
void bind_mesh(py::module_& module);
void bind_tensor(py::module_& module);
void bind_world(py::module_& module);
void bind_dry_run(py::module_& module);
void bind_inspect(py::module_& module);
void bind_parallel(py::module_& module);
void bind_optim(py::module_& module);
void bind_checkpoint(py::module_& module);
void bind_pipeline(py::module_& module);
void bind_moe(py::module_& module);
void bind_routed_experts(py::module_& module);
void bind_attention(py::module_& module);
void bind_halo(py::module_& module);
void bind_interop(py::module_& module);
void bind_register_sharding(py::module_& module);

// Lets bound functions that take a `Type` also take values for which `accepts` holds: the constructor of one argument
// converts them. Unlike py::implicitly_convertible it is safe on several threads at once.
template <class Type, class Accepts>
void accept_as(Accepts) {
  py::detail::get_type_info(typeid(Type), true)
      ->implicit_conversions.push_back([](PyObject* value, PyTypeObject* type) {
        if (!Accepts{}(py::handle(value))) return static_cast<PyObject*>(nullptr);
        PyObject* result = PyObject_CallOneArg(reinterpret_cast<PyObject*>(type), value);
        if (result == nullptr) PyErr_Clear();
        return result;
      });
}

// Whether a Python exception is one of the library's; see errors.cpp.
bool is_comm_error(const py::error_already_set& error);
bool is_peer_error(const py::error_already_set& error);

// The communicator of all ranks of the calling thread's program; see world.cpp.
Communicator current_world();
// `world` if it moves tensors of the device, else its ranks over NCCL. Collective; called without the GIL.
Communicator world_on_device(const Communicator& world, c10::DeviceType device);

// A scope of the library as a context manager: constructed on entry, on the entering thread, and destroyed on exit.
template <class Scope>
class ScopeContextManager {
 public:
  explicit ScopeContextManager(std::function<std::unique_ptr<Scope>()> make) : make_(std::move(make)) {}
  void enter() {
    TORCH_CHECK(!scope_, "this scope is already entered; create a new one");
    scope_ = make_();
  }
  void leave() { scope_.reset(); }
  const std::unique_ptr<Scope>& scope() const { return scope_; }

 private:
  std::function<std::unique_ptr<Scope>()> make_;
  std::unique_ptr<Scope> scope_;
};

template <class Scope>
py::class_<ScopeContextManager<Scope>> bind_scope(py::module_& module, const char* name, const char* doc) {
  py::class_<ScopeContextManager<Scope>> scope(module, name, doc);
  scope
      .def("__enter__",
           [](py::object self) {
             self.cast<ScopeContextManager<Scope>&>().enter();
             return self;
           })
      .def("__exit__", [](ScopeContextManager<Scope>& self, const py::args&) { self.leave(); });
  return scope;
}

}  // namespace dtensor::python
