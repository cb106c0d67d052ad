// What the files of the module share: one function for each part of the interface, and how functions are bound.
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

// Whatever may wait for other ranks or compute gives up the interpreter lock: a rank that held it would keep the other
// thread ranks from getting where it waits for them.
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

// The same for what py::init takes. ReleaseGil beside py::init would also let pybind11 enter the new object into its
// table of all objects without the lock, which thread ranks then write at once ("deallocate unregistered instance").
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
void bind_inspect(py::module_& module);
void bind_parallel(py::module_& module);
void bind_optim(py::module_& module);
void bind_checkpoint(py::module_& module);
void bind_pipeline(py::module_& module);
void bind_moe(py::module_& module);
void bind_routed_experts(py::module_& module);
void bind_attention(py::module_& module);
void bind_interop(py::module_& module);
void bind_register_sharding(py::module_& module);

// Wherever a bound function takes a `Type`, it takes values for which `accepts` holds too: the constructor of one
// argument converts them. Unlike py::implicitly_convertible it holds on several threads at once.
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

// What Python code raised, of the library's own; see errors.cpp.
bool is_comm_error(const py::error_already_set& error);
bool is_peer_error(const py::error_already_set& error);

// The communicator of all ranks that the calling thread's program runs on; see world.cpp.
Communicator current_world();

// A scope of the library as a context manager: made on entry, on the thread that enters, gone on exit.
template <class Scope>
class ScopeContextManager {
 public:
  explicit ScopeContextManager(std::function<std::unique_ptr<Scope>()> make) : make_(std::move(make)) {}
  void enter() {
    TORCH_CHECK(!scope_, "this scope is open already; make another one");
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
