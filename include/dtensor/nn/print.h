// Prints a module as a tree, as torch.nn does.
#pragma once

#include <iosfwd>
#include <string>

#include "dtensor/nn.h"

namespace dtensor::nn {

// The tree of modules with their types and tensors: sizes and dtypes, and the placements of DTensors. Consecutive
// children with equal texts are one entry. No communication.
DTENSOR_API std::string to_string(Module& module);
DTENSOR_API std::ostream& operator<<(std::ostream& out, Module& module);

}  // namespace dtensor::nn
