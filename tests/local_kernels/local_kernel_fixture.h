// Runs a local kernel as the engine would, without the engine: slices whole arguments by placement, calls the kernel on
// every thread rank with hand-made specs, glues the local results by theirs. Tests compare that with the plain
// operator.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/mesh.h"
#include "ops/local_kernels/local_kernel.h"
#include "placement/shard_map.h"

namespace dtensor::testing {

struct KernelCase {
  std::string op, overload, kernel;
  std::vector<c10::IValue> args;    // whole values, one per schema argument
  std::vector<Placements> inputs;   // per flattened operand; empty: absent, or passed as it is without a spec
  std::vector<Placements> outputs;  // per flattened output
  std::vector<std::int64_t> mesh;
};

std::vector<at::Tensor> run_full(const KernelCase& c);
std::vector<at::Tensor> run_sharded(const KernelCase& c);
// What rank 0 of the case's mesh communicates, in order: names of collectives.
std::vector<std::string> collectives_of(const KernelCase& c);
// Equal sizes, dtypes and values (NaN equals NaN) within a relative tolerance that suits the dtype.
void check_close(const at::Tensor& expected, const at::Tensor& actual, const std::string& what);
void check_case(const KernelCase& c);  // both runs, every output; skipped where the plain operator refuses
std::string describe(const KernelCase& c);

// Pieces of run_sharded, for tests that need more than one mesh.
at::Tensor slice_for(const at::Tensor& full, const Placements& placements, const MeshInfo& mesh);
SpecPtr spec_for(const at::Tensor& full, const Placements& placements, const DeviceMesh& mesh);

// Random parts of cases. any_mesh comes first: it seeds ATen's generator.
std::vector<std::int64_t> any_mesh();
std::vector<std::int64_t> any_sizes(int min_dims, int max_dims, int smallest = 0);
// Per mesh axis Replicate or Shard of one of `dims`.
Placements any_shards(const std::vector<std::int64_t>& mesh, const std::vector<std::int64_t>& dims);
at::ScalarType any_float();
bool flip();
std::int64_t pick(std::int64_t low, std::int64_t high);  // both included

// Placements of the result of reducing `dims`: shards of those become Partial(op), or Replicate where `whole`.
Placements reduced(const Placements& in, const std::vector<std::int64_t>& dims, bool keepdim, bool full,
                   ReduceOp op = ReduceOp::sum);
std::vector<std::int64_t> all_dims(std::int64_t ndim);
Placements replicated(const std::vector<std::int64_t>& mesh);
// Shards of `dim` replaced.
Placements replace_dim(const Placements& in, std::int64_t dim, const Placement& by);

}  // namespace dtensor::testing
