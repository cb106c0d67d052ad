// The library's exceptions as Python exceptions.
#include <torch/csrc/Exceptions.h>

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

}  // namespace

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
