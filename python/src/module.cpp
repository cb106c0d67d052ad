// The module dtensor._C binds the public headers. The Python part of the package is in python/dtensor.
#include "argument_errors.h"
#include "bind.h"
#include "internal/ranks/gil_hooks.h"

namespace dtensor::python {
namespace {

void* release_gil() { return PyGILState_Check() ? PyEval_SaveThread() : nullptr; }
void acquire_gil(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

}  // namespace
}  // namespace dtensor::python

PYBIND11_MODULE(_C, module) {
  using namespace dtensor::python;
  dtensor::set_gil_release_hooks({&release_gil, &acquire_gil});
  module.attr("torch_version") = DTENSOR_TORCH_VERSION;
  module.attr("version") = DTENSOR_VERSION;
  bind_errors(module);
  bind_placement(module);
  bind_mesh(module);
  bind_world(module);
  bind_dry_run(module);
  bind_tensor(module);
  bind_inspect(module);
  bind_parallel(module);
  bind_optim(module);
  bind_checkpoint(module);
  bind_pipeline(module);
  bind_moe(module);
  bind_routed_experts(module);
  bind_attention(module);
  bind_halo(module);
  bind_interop(module);
  bind_register_sharding(module);
  explain_argument_errors(module);
}
