// Fully sharded parameters, constraints of activations, losses and recomputation.
#include "bind.h"

namespace dtensor::python {
namespace {

at::Tensor constrain_axis(const at::Tensor& x, const std::string& axis, const Placement& placement) {
  return constrain(x, axis, placement);
}

}  // namespace

void bind_parallel(py::module_& module) { module.def("constrain", &constrain_axis, NoLock()); }

}  // namespace dtensor::python
