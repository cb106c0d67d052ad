// The library's exceptions as Python exceptions.
#include <torch/csrc/Exceptions.h>

#include "argument_errors.h"
#include "bind.h"

namespace dtensor::python {
namespace {

// Never destroyed: exceptions are translated until the interpreter exits.
py::handle comm_error, peer_error;

// Translates as torch's own functions do: to IndexError, NotImplementedError, ..., without the C++ stack.
void translate(std::exception_ptr error) {
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const CommError& e) {
    py::set_error(comm_error, e.what());
  } catch (const PeerError& e) {
    py::set_error(peer_error, e.what_without_backtrace());
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(error);
  }
}

py::handle make_error(py::module_& module, const char* name, const char* doc) {
  const auto full = module.attr("__name__").cast<std::string>() + "." + name;
  const py::handle type = PyErr_NewExceptionWithDoc(full.c_str(), doc, PyExc_RuntimeError, nullptr);
  if (!type) throw py::error_already_set();
  module.attr(name) = type;
  return type;
}

// pybind11 calls all its functions through one C function, with the calling convention of its version.
using FastCall = PyObject* (*)(PyObject*, PyObject* const*, size_t, PyObject*);
using TupleCall = PyObject* (*)(PyObject*, PyObject*, PyObject*);
FastCall fast_call = nullptr;
TupleCall tuple_call = nullptr;

void explain(const py::tuple& args, const py::dict& keywords) {
  py::error_already_set error;
  const std::string text = py::str(error.value());
  if (text.find("(): incompatible ") == std::string::npos) return error.restore();
  const auto message = py::module_::import("dtensor._argument_errors").attr("message")(text, args, keywords);
  PyErr_SetObject(PyExc_TypeError, message.ptr());
}

bool is_argument_error(const PyObject* result) {
  return result == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0;
}

PyObject* explained_fast_call(PyObject* self, PyObject* const* values, size_t count, PyObject* names) {
  PyObject* result = fast_call(self, values, count, names);
  if (!is_argument_error(result)) return result;
  const auto positional = static_cast<size_t>(PyVectorcall_NARGS(count));
  py::tuple args(positional);
  for (size_t i = 0; i < positional; ++i) args[i] = py::handle(values[i]);
  py::dict keywords;
  const size_t named = names == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(names));
  for (size_t i = 0; i < named; ++i) {
    keywords[py::handle(PyTuple_GET_ITEM(names, static_cast<Py_ssize_t>(i)))] = py::handle(values[positional + i]);
  }
  explain(args, keywords);
  return nullptr;
}

PyObject* explained_tuple_call(PyObject* self, PyObject* args, PyObject* keywords) {
  PyObject* result = tuple_call(self, args, keywords);
  if (!is_argument_error(result)) return result;
  explain(py::reinterpret_borrow<py::tuple>(args),
          keywords == nullptr ? py::dict() : py::reinterpret_borrow<py::dict>(keywords));
  return nullptr;
}

template <class Call>
void replace(PyMethodDef& method, Call& original, Call explained) {
  const auto call = reinterpret_cast<Call>(reinterpret_cast<void (*)()>(method.ml_meth));
  if (original == nullptr) original = call;
  if (call == original) method.ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(explained));
}

void explain_errors_of(PyObject* function) {
  if (PyInstanceMethod_Check(function)) function = PyInstanceMethod_GET_FUNCTION(function);
  if (!PyCFunction_Check(function)) return;
  PyMethodDef& method = *reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  if (method.ml_flags == (METH_FASTCALL | METH_KEYWORDS)) replace(method, fast_call, &explained_fast_call);
  if (method.ml_flags == (METH_VARARGS | METH_KEYWORDS)) replace(method, tuple_call, &explained_tuple_call);
}

}  // namespace

void explain_argument_errors(py::module_& module) {
  for (const auto& [name, value] : py::dict(module.attr("__dict__"))) {
    explain_errors_of(value.ptr());
    if (!PyType_Check(value.ptr())) continue;
    for (const auto& [member, attribute] : py::dict(value.attr("__dict__"))) {
      const py::object function = py::getattr(attribute, "__func__", attribute);  // of a static method
      explain_errors_of(function.ptr());
    }
  }
}

bool is_comm_error(const py::error_already_set& error) { return error.matches(comm_error); }
bool is_peer_error(const py::error_already_set& error) { return error.matches(peer_error); }

void bind_errors(py::module_& module) {
  comm_error = make_error(
      module, "CommError",
      "A collective that could not complete: a peer failed, exited, called another collective or timed out.");
  peer_error =
      make_error(module, "PeerError",
                 "Another rank's exception, raised on this rank so that all ranks end the same call (such as a "
                 "pipeline step).\nThe ranks can continue. If it leaves run(), run() raises the original "
                 "exception instead.");
  py::register_local_exception_translator(&translate);
}

}  // namespace dtensor::python
