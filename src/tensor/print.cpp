// Printing a DTensor: its description, then this rank's part. No communication, so that a debugger may do it.
#include <ATen/core/Formatting.h>

#include <ostream>

#include "dtensor/tensor.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

std::ostream& operator<<(std::ostream& out, const DTensor& tensor) {
  if (!tensor.defined()) return out << "DTensor(undefined)";
  const auto* impl = dtensor_or_null(tensor);
  out << "DTensor(" << impl->spec()->str() << ", local on rank " << impl->spec()->mesh->world_rank << ":\n";
  return impl->local().defined() ? out << impl->local().detach() << ")" : out << "none)";
}

}  // namespace dtensor
