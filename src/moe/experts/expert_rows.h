// Experts as operators on DTensors: the rows of all ranks that hold an expert are one DTensor, and in a BitIdentical
// scope they are in the order of one device.
#pragma once

#include <functional>
#include <vector>

#include "dtensor/mesh.h"
#include "dtensor/moe/router.h"
#include "moe/experts/experts.h"

namespace dtensor::moe {

// For each rank that holds the experts of this rank: the indices in the mesh of the ranks that send tokens to it.
using RowSources = std::vector<std::vector<std::int64_t>>;
// An axis of -1 is missing. Ranks of `etp` have the same tokens.
RowSources row_sources(const DeviceMesh& mesh, std::int64_t edp, std::int64_t etp);

// In a BitIdentical scope an expert's rows must arrive in the order of one device, since gradients are sums over them.
// Collective over the mesh. `layer` is the name in the error.
void check_row_order(const char* layer, const DeviceMesh& mesh, const RowSources& sources, const TokenLayout& layout,
                     std::int64_t tokens);

// Runs an expert on `rows` as a DTensor on `holders`. Ranks of its first axis have `sizes` rows each (one size: the
// same rows), those of other axes the same rows. `name` is that of the expert in errors.
at::Tensor run_on_holders(const at::Tensor& rows, const DeviceMesh& holders, const std::vector<std::int64_t>& sizes,
                          const std::function<at::Tensor(const at::Tensor&)>& expert, const std::string& name);

// Packed experts as operators on DTensors: counts[e] of the rows are for local expert e, whose weights these are.
// `blocks`: the rows of rows_of_blocks() of these experts; undefined without gradients.
at::Tensor run_packed_on_holders(const at::Tensor& rows, at::IntArrayRef counts, const ExpertWeights& weights,
                                 ExpertActivation activation, const DeviceMesh& holders, const at::Tensor& blocks);

// Results of experts. In a BitIdentical scope their backward notes that gradients of microbatches cannot be added,
// because of `what`, a literal; null: they can.
at::Tensor refuse_microbatches(const at::Tensor& results, const char* what);

}  // namespace dtensor::moe
