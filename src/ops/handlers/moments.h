// Mean and sum of squared deviations over dimensions that may be split between ranks.
#pragma once

#include "ops/handlers/local_args.h"

namespace dtensor {

struct Moments {
  at::Tensor mean;     // double (complex double for complex inputs)
  at::Tensor squares;  // sum of squared deviations from the mean, double
};

// Of the whole, on every rank of `axes`; `count` is the global number of elements per mean. Two small all_reduces.
Moments global_moments(const LocalCall& call, const at::Tensor& self, at::IntArrayRef dims, double count, bool keepdim,
                       AxisMask axes);

}  // namespace dtensor
