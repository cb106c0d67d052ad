// Communication of local kernels, which redistribution plans do not include.
#pragma once

#include "verify/oracle.h"

namespace dtensor::verify {

// The largest number of bytes that one of `ranks` ranks receives while the operator runs on operands with these
// placements (empty: a regular tensor). It counts only the collectives of the local kernel, from the event stream of
// thread ranks. If the call throws, it returns 0 and prints a line to stderr.
double kernel_traffic(const Sample& sample, std::int64_t ranks, const std::vector<Placements>& inputs);

}  // namespace dtensor::verify
