// Moments of dimensions that are sharded over ranks.
#pragma once

#include "ops/local_kernels/local_args.h"

namespace dtensor {

struct VarianceAccumulator {
  at::Tensor mean;     // double (complex double for complex inputs)
  at::Tensor squares;  // sum of squared deviations from the mean, double
};

// The global moments, on every rank of `axes`. `count` is the global number of elements per mean. Two small
// all_reduces.
VarianceAccumulator global_variance(const LocalCall& call, const at::Tensor& self, at::IntArrayRef dims, double count,
                                    bool keepdim, AxisMask axes);

}  // namespace dtensor
