// The library's optimizers.
#include "bind.h"

namespace dtensor::python {

void bind_optim(py::module_&) {}

}  // namespace dtensor::python
