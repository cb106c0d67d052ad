// For libraries that do not support DTensors: the address of a tensor's memory, and the elements that a rank stores.
#include <torch/csrc/autograd/python_variable.h>

#include "bind.h"
#include "internal/shard_segments.h"

namespace dtensor::python {
namespace {

PyObject* torch_data_ptr = nullptr;  // torch's own method

constexpr const char* kNoAddress =
    "data_ptr: a DTensor has no memory of its own: save full_tensor(), or use dtensor.save (dtensor.load_safetensors "
    "reads it back); to_local() is this rank's part, which has an address";

// A C function, since libraries call it for each argument of each kernel launch: no measurable cost over torch's own.
PyObject* data_ptr(PyObject* self, PyObject*) {
  if (!is_dtensor(THPVariable_Unpack(self))) return PyObject_CallOneArg(torch_data_ptr, self);
  PyErr_SetString(PyExc_RuntimeError, kNoAddress);
  return nullptr;
}

void install_data_ptr() {
  static PyMethodDef method = {"data_ptr", &data_ptr, METH_NOARGS,
                               "data_ptr() -> int\n\nAddress of the first element."};
  const auto tensor = py::reinterpret_borrow<py::object>(THPVariableClass);
  if (torch_data_ptr == nullptr) torch_data_ptr = py::object(tensor.attr("data_ptr")).release().ptr();
  auto* type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  tensor.attr("data_ptr") = py::reinterpret_steal<py::object>(PyDescr_NewMethod(type, &method));
}

using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;  // offset, length

// Segments of each dimension; None outside the mesh.
std::optional<std::vector<Pairs>> local_segments(const at::Tensor& tensor) {
  const DTensor placed(tensor);
  const auto coordinate = placed.mesh().coordinate();
  if (!coordinate) return std::nullopt;
  std::vector<Pairs> dims;
  for (std::int64_t d = 0; d < placed.dim(); ++d) {
    Pairs& pairs = dims.emplace_back();
    for (const Segment& s :
         shard_segments(placed.size(d), d, placed.placements(), placed.mesh().shape(), *coordinate)) {
      pairs.emplace_back(s.offset, s.length);
    }
  }
  return dims;
}

}  // namespace

void bind_interop(py::module_& module) {
  module.def("install_data_ptr", &install_data_ptr);
  module.def("local_segments", &local_segments);
}

}  // namespace dtensor::python
