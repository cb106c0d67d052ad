// The library's checkpoints.
#include "bind.h"

namespace dtensor::python {

void bind_checkpoint(py::module_&) {}

}  // namespace dtensor::python
