// Runs a body on the ranks of the backend under test: threads, or the processes of an mpirun.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "dtensor/comm.h"

namespace dtensor::test {

// Runs `body` on `ranks` ranks. Under mpirun: on the first `ranks` processes (all, if there are fewer).
void on_ranks(int ranks, const std::function<void(Communicator)>& body);

// A tensor of the given dtype whose values depend on seed and position only, small enough to be exact in every dtype.
at::Tensor sample(at::IntArrayRef sizes, at::ScalarType dtype, std::int64_t seed);

// Copies values into memory that is not contiguous: transposed, offset or strided, by `kind`.
at::Tensor strided_like(const at::Tensor& values, int kind);
constexpr int kStridedKinds = 4;

// Returns whether two tensors have equal sizes, dtypes and values.
inline bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && at::equal(a, b);
}

}  // namespace dtensor::test
