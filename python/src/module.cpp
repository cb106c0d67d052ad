// The module dtensor._C: the public headers as Python sees them. What is written in Python is in python/dtensor.
#include <torch/csrc/Exceptions.h>

#include "bind.h"
#include "dtensor/wait_hooks.h"

namespace dtensor::python {
namespace {

void* give_up_interpreter() { return PyGILState_Check() ? PyEval_SaveThread() : nullptr; }
void take_interpreter(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

// As torch's own functions do it: IndexError, NotImplementedError, ..., without the C++ stack.
void translate(std::exception_ptr error) {
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(error);
  }
}

}  // namespace
}  // namespace dtensor::python

PYBIND11_MODULE(_C, module) {
  using namespace dtensor::python;
  dtensor::set_wait_hooks({&give_up_interpreter, &take_interpreter});
  pybind11::register_local_exception_translator(&translate);
  pybind11::register_local_exception<dtensor::CommError>(module, "CommError", PyExc_RuntimeError).attr("__doc__") =
      "A collective that could not finish: a peer failed, left, called something else or did not come in time.";
  module.attr("torch_version") = DTENSOR_TORCH_VERSION;
  module.attr("version") = DTENSOR_VERSION;
  bind_placement(module);
  bind_mesh(module);
  bind_world(module);
  bind_tensor(module);
  bind_inspect(module);
  bind_parallel(module);
  bind_optim(module);
  bind_checkpoint(module);
  bind_pipeline(module);
  bind_moe(module);
  bind_routed_experts(module);
  bind_attention(module);
}
