// Runs a local kernel without the operator kernel: slices full arguments by placement, calls the kernel on every thread
// rank with explicit specs, and combines the local results. Tests compare the result with the ATen operator.
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
  std::vector<c10::IValue> args;    // full values, one per schema argument
  std::vector<Placements> inputs;   // per flattened operand; empty: absent, or passed unchanged without a spec
  std::vector<Placements> outputs;  // per flattened output
  std::vector<std::int64_t> mesh;
};

std::vector<at::Tensor> run_full(const KernelCase& c);
std::vector<at::Tensor> run_sharded(const KernelCase& c);
// Names of the collectives that rank 0 of the case's mesh calls, in order.
std::vector<std::string> collectives_of(const KernelCase& c);
// Requires equal sizes, dtypes and values (NaN equals NaN) within a relative tolerance for the dtype.
void check_close(const at::Tensor& expected, const at::Tensor& actual, const std::string& what);
void check_case(const KernelCase& c);  // compares all outputs of both runs; discarded if the ATen operator refuses
std::string describe(const KernelCase& c);

// Parts of run_sharded, for tests with several meshes.
at::Tensor slice_for(const at::Tensor& full, const Placements& placements, const MeshInfo& mesh);
SpecPtr spec_for(const at::Tensor& full, const Placements& placements, const DeviceMesh& mesh);

// Random parts of cases. Call any_mesh first: it seeds ATen's generator.
std::vector<std::int64_t> any_mesh();
std::vector<std::int64_t> any_sizes(int min_dims, int max_dims, int smallest = 0);
// Replicate, or Shard of one of `dims`, per mesh axis.
Placements any_shards(const std::vector<std::int64_t>& mesh, const std::vector<std::int64_t>& dims);
at::ScalarType any_float();
bool flip();
std::int64_t pick(std::int64_t low, std::int64_t high);  // inclusive bounds

// Placements after a reduction of `dims`: shards of them become Partial(op), or Replicate if `full`.
Placements reduced(const Placements& in, const std::vector<std::int64_t>& dims, bool keepdim, bool full,
                   ReduceOp op = ReduceOp::sum);
std::vector<std::int64_t> all_dims(std::int64_t ndim);
Placements replicated(const std::vector<std::int64_t>& mesh);
// Replaces shards of `dim`.
Placements replace_dim(const Placements& in, std::int64_t dim, const Placement& by);

}  // namespace dtensor::testing
