// The library's exceptions as Python sees them.
#include <torch/csrc/Exceptions.h>

#include "bind.h"

namespace dtensor::python {
namespace {

// Never destroyed: exceptions are translated as long as the interpreter runs.
py::handle comm_error, peer_error;

// As torch's own functions do it: IndexError, NotImplementedError, ..., without the C++ stack.
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

}  // namespace

bool is_comm_error(const py::error_already_set& error) { return error.matches(comm_error); }
bool is_peer_error(const py::error_already_set& error) { return error.matches(peer_error); }

void bind_errors(py::module_& module) {
  comm_error = make_error(
      module, "CommError",
      "A collective that could not finish: a peer failed, left, called something else or did not come in time.");
  peer_error = make_error(module, "PeerError",
                          "Another rank's exception, told to this one, so that all end the same call (a step of a "
                          "pipeline, say). The ranks can go on; where they do not, run() raises the exception itself.");
  py::register_local_exception_translator(&translate);
}

}  // namespace dtensor::python
