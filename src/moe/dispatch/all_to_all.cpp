// Row exchanges with uneven sizes: all-to-all, all-gather and reduce-scatter, with their gradients.
#include "dtensor/moe/dispatch.h"
#include "moe/dispatch/permute.h"

#include <ATen/ATen.h>

#include "moe/local_function.h"
#include "moe/routing/router_parts.h"

namespace dtensor {
namespace {

using moe::Node;
using moe::variable_list;
using Splits = std::vector<std::int64_t>;

std::int64_t sum(at::IntArrayRef values) { return c10::sum_integers(values); }

std::vector<at::Tensor> cut(const at::Tensor& rows, at::IntArrayRef splits) { return rows.split_with_sizes(splits, 0); }

at::Tensor rows_like(const at::Tensor& like, std::int64_t rows) {
  auto sizes = like.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, like.options());
}

void check_splits(const char* what, at::IntArrayRef splits, const Communicator& comm) {
  TORCH_CHECK(splits.size() == static_cast<std::size_t>(comm.size()), "all_to_all: got ", splits.size(), " ", what,
              " for ", comm.size(), " ranks");
  for (const auto rows : splits) TORCH_CHECK(rows >= 0, "all_to_all: ", what, " ", splits, " contain a negative size");
}

at::Tensor exchange(const at::Tensor& input, at::IntArrayRef output_splits, at::IntArrayRef input_splits,
                    const Communicator& comm, const std::function<void()>& overlap_fn = {}) {
  Work work;
  at::Tensor result;
  {
    const LocalBelowAutogradGuard guard;
    const auto from = input.contiguous();
    result = rows_like(from, sum(output_splits));
    work = comm.all_to_all(cut(result, output_splits), cut(from, input_splits));
  }
  if (overlap_fn) overlap_fn();
  work.wait();
  return result;
}

// The gradient of the only output. An undefined gradient counts as zeros, because the collective must run on all ranks.
// Autograd calls apply() only for nodes that the loss depends on, so outputs of a dispatch always stay in the graph.
at::Tensor arrived(const Node& node, const variable_list& grads) {
  const NoMeshScopeGuard regular;
  return grads[0].defined() ? grads[0] : node.input_metadata(0).zeros_like();
}

// If a rank's loss does not depend on the output, this rank never reaches the collective. The error of the other ranks
// does not show the reason, so this adds it.
template <class Exchange>
variable_list in_backward(const char* of, const Exchange& exchange) {
  try {
    return {exchange()};
  } catch (const CommError& error) {
    throw CommError(c10::str(error.what(), "; in backward of ", of,
                             ", which is collective: the loss of each rank must ", "depend on what ", of,
                             " returned on that rank; add 0 * result.sum() if it is unused"));
  }
}

struct AllToAllBackward final : Node {
  AllToAllBackward(Splits outs, Splits ins, Communicator c)
      : outputs(std::move(outs)), inputs(std::move(ins)), comm(std::move(c)) {}
  variable_list apply(variable_list&& grads) override {
    return in_backward("all_to_all", [&] { return all_to_all(arrived(*this, grads), inputs, outputs, comm); });
  }
  std::string name() const override { return "AllToAllBackward"; }
  Splits outputs, inputs;
  Communicator comm;
};

struct GatherRowsBackward final : Node {
  GatherRowsBackward(Splits r, Communicator c) : rows(std::move(r)), comm(std::move(c)) {}
  variable_list apply(variable_list&& grads) override {
    return in_backward("all_gather_rows", [&] { return reduce_scatter_rows(arrived(*this, grads), rows, comm); });
  }
  std::string name() const override { return "GatherRowsBackward"; }
  Splits rows;
  Communicator comm;
};

struct SumRowsBackward final : Node {
  SumRowsBackward(Splits r, Communicator c) : rows(std::move(r)), comm(std::move(c)) {}
  variable_list apply(variable_list&& grads) override {
    return in_backward("reduce_scatter_rows", [&] { return all_gather_rows(arrived(*this, grads), rows, comm); });
  }
  std::string name() const override { return "SumRowsBackward"; }
  Splits rows;
  Communicator comm;
};

}  // namespace

at::Tensor all_to_all(const at::Tensor& input, at::IntArrayRef output_splits, at::IntArrayRef input_splits,
                      const Communicator& comm, const std::function<void()>& overlap_fn) {
  TORCH_CHECK(input.dim() > 0, "all_to_all: expected a tensor with at least one dimension, got a scalar");
  check_splits("output splits", output_splits, comm);
  check_splits("input splits", input_splits, comm);
  TORCH_CHECK(sum(input_splits) == input.size(0), "all_to_all: expected input splits with the sum of the rows, got ",
              input_splits, " for ", input.size(0), " rows");
  if (comm.size() == 1) {
    TORCH_CHECK(output_splits == input_splits, "all_to_all: splits ", output_splits, " and ", input_splits,
                " of a single rank differ");
    if (overlap_fn) overlap_fn();
    return input;
  }
  auto result = exchange(input, output_splits, input_splits, comm, overlap_fn);
  if (!moe::needs_graph(input)) return result;
  return moe::with_node(result, moe::make_node<AllToAllBackward>(output_splits.vec(), input_splits.vec(), comm), input);
}

std::vector<std::int64_t> exchange_splits(at::IntArrayRef input_splits, const Communicator& comm) {
  check_splits("input splits", input_splits, comm);
  if (comm.size() == 1) return input_splits.vec();
  const NoMeshScopeGuard regular;
  const Splits ones(comm.size(), 1);
  const auto received = exchange(at::tensor(input_splits, at::kLong), ones, ones, comm);
  return {received.const_data_ptr<std::int64_t>(), received.const_data_ptr<std::int64_t>() + comm.size()};
}

at::Tensor all_to_all(const at::Tensor& input, at::IntArrayRef input_splits, const Communicator& comm) {
  return all_to_all(input, exchange_splits(input_splits, comm), input_splits, comm);
}

at::Tensor all_gather_rows(const at::Tensor& input, at::IntArrayRef rows, const Communicator& comm) {
  TORCH_CHECK(rows.size() == static_cast<std::size_t>(comm.size()) && rows[comm.rank()] == input.size(0),
              "all_gather_rows: rows ", rows, ", but rank ", comm.rank(), " has ", input.size(0));
  if (comm.size() == 1) return input;
  at::Tensor result;
  {
    const LocalBelowAutogradGuard guard;
    result = rows_like(input, sum(rows));
    comm.all_gather(cut(result, rows), input.contiguous()).wait();
  }
  if (!moe::needs_graph(input)) return result;
  return moe::with_node(result, moe::make_node<GatherRowsBackward>(rows.vec(), comm), input);
}

at::Tensor reduce_scatter_rows(const at::Tensor& input, at::IntArrayRef rows, const Communicator& comm) {
  TORCH_CHECK(rows.size() == static_cast<std::size_t>(comm.size()) && sum(rows) == input.size(0),
              "reduce_scatter_rows: expected one size per rank with the sum of the rows, got ", rows, " for ",
              input.size(0));
  if (comm.size() == 1) return input;
  at::Tensor result;
  {
    const LocalBelowAutogradGuard guard;
    const auto from = input.contiguous();
    result = rows_like(from, rows[comm.rank()]);
    comm.reduce_scatter(result, cut(from, rows), ReduceOp::sum).wait();
  }
  if (!moe::needs_graph(input)) return result;
  return moe::with_node(result, moe::make_node<SumRowsBackward>(rows.vec(), comm), input);
}

}  // namespace dtensor
