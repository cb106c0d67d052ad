// Parts of graphs: exchange of ghost rows (GraphHalo), and rows of edges. Each rank's rows are its part of a tensor
// with a RaggedShard of dimension 0.
#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <numeric>

#include "c/handles.h"
#include "c/status.h"
#include "dtensor/halo.h"

namespace dtensor::c {
namespace {

constexpr std::int64_t kMaxRows = std::int64_t{1} << 40;  // of one rank

// The rows of each rank in one kind of tensor.
using RowCounts = std::vector<std::int64_t>;

struct Graph {
  static constexpr Kind kKind = Kind::graph;
  DeviceMesh mesh;
  GraphHalo halo;
  at::Tensor source, target;       // int64 [edges]
  RowCounts owned, stored, edges;  // stored: with ghosts
};

Graph& object(const dtensor_graph* handle) { return *static_cast<Graph*>(find_object(handle, Kind::graph, "graph")); }

RowCounts counts_of_ranks(const Communicator& ranks, std::int64_t own) {
  const auto mine = at::full({1}, own, at::kLong), all = at::empty({ranks.size()}, at::kLong);
  ranks.all_gather(all.split(1), mine).wait();
  return {all.const_data_ptr<std::int64_t>(), all.const_data_ptr<std::int64_t>() + all.numel()};
}

// A copy of `count` row numbers in [0, rows).
at::Tensor rows_of(const std::int64_t* numbers, std::int64_t count, std::int64_t rows, const char* what) {
  if (count > 0) required(numbers, what);
  for (std::int64_t i = 0; i < count; ++i) {
    TORCH_CHECK_VALUE(numbers[i] >= 0 && numbers[i] < rows, "expected ", what, " in [0, ", rows, "), got ", numbers[i]);
  }
  const auto result = at::empty({count}, at::kLong);
  std::copy_n(numbers, count, result.mutable_data_ptr<std::int64_t>());
  return result;
}

// The rows that this rank sends to each rank.
std::vector<at::Tensor> send_lists(const std::int64_t* counts, const std::int64_t* rows, std::int64_t owned,
                                   int ranks) {
  required(counts, "list of send counts");
  std::int64_t total = 0;
  for (int r = 0; r < ranks; ++r) {
    TORCH_CHECK_VALUE(counts[r] >= 0 && counts[r] <= kMaxRows, "expected numbers of rows to send in [0, ", kMaxRows,
                      "], got ", counts[r]);
    total += counts[r];
  }
  const auto all = rows_of(rows, total, owned, "rows to send");
  return all.split_with_sizes(at::IntArrayRef(counts, static_cast<std::size_t>(ranks)));
}

// This rank's rows of a tensor with any placements.
at::Tensor local_rows(const Graph& graph, const dtensor_tensor* handle, const RowCounts& rows) {
  const DTensor& x = c::object(handle, "tensor of rows").tensor;
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(0) == c10::sum_integers(rows), "expected a tensor of ",
                    c10::sum_integers(rows), " rows (", rows, " of the ranks), got sizes ", x.sizes());
  return x.redistribute(graph.mesh, {RaggedShard(0, rows)}).to_local();
}

// The tensor of all ranks' rows.
at::Tensor tensor_of_rows(const Graph& graph, const at::Tensor& local, const RowCounts& rows) {
  return DTensor::from_local(local.contiguous(), graph.mesh, {RaggedShard(0, rows)});
}

using RowsFn = at::Tensor (*)(const Graph&, const at::Tensor&);

dtensor_status apply(const char* caller, const dtensor_graph* handle, const dtensor_tensor* rows,
                     dtensor_tensor** result, const RowCounts Graph::*from, const RowCounts Graph::*to,
                     RowsFn compute) {
  return guarded_on_all(caller, {handle, rows}, [&] {
    required(result, "pointer for the result");
    const Graph& graph = object(handle);
    *result = new_tensor(tensor_of_rows(graph, compute(graph, local_rows(graph, rows, graph.*from)), graph.*to));
  });
}

}  // namespace
}  // namespace dtensor::c

using namespace dtensor::c;

dtensor_status dtensor_graph_create(const dtensor_mesh* mesh, int64_t owned, const int64_t* send_counts,
                                    const int64_t* send_rows, int64_t edges, const int64_t* source,
                                    const int64_t* target, dtensor_graph** graph) {
  return guarded_on_all(__func__, {mesh}, [&] {
    const auto& on = object(mesh).mesh;
    const auto ranks = on.communicator();
    TORCH_CHECK_VALUE(on.ndim() == 1, "expected a mesh of 1 dimension, got ", on.str());
    std::vector<at::Tensor> lists;
    at::Tensor sources, targets;
    agree(ranks, [&] {
      required(graph, "pointer for the graph");
      TORCH_CHECK_VALUE(owned >= 0 && owned <= kMaxRows && edges >= 0 && edges <= kMaxRows,
                        "expected numbers of nodes ", "and edges in [0, ", kMaxRows, "], got ", owned, " and ", edges);
      lists = send_lists(send_counts, send_rows, owned, ranks.size());
      targets = rows_of(target, edges, owned, "targets of edges");
      return std::string();
    });
    const dtensor::GraphHalo halo(ranks, owned, lists);
    agree(ranks, [&] {
      sources = rows_of(source, edges, owned + halo.ghosts(), "sources of edges");
      return std::string();
    });
    *graph =
        new_handle<dtensor_graph>(Graph{on, halo, sources, targets, counts_of_ranks(ranks, owned),
                                        counts_of_ranks(ranks, owned + halo.ghosts()), counts_of_ranks(ranks, edges)});
  });
}

void dtensor_graph_free(dtensor_graph* graph) {
  guarded(__func__, [&] { free_object(graph, Kind::graph); });
}

dtensor_status dtensor_graph_ghosts(const dtensor_graph* graph, int64_t* ghosts) {
  return guarded(__func__, [&] { required(ghosts, "pointer for the number") = object(graph).halo.ghosts(); });
}

dtensor_status dtensor_graph_exchange(const dtensor_graph* graph, const dtensor_tensor* rows, dtensor_tensor** result) {
  return apply(__func__, graph, rows, result, &Graph::owned, &Graph::stored,
               [](const Graph& g, const at::Tensor& x) { return g.halo.exchange(x); });
}

dtensor_status dtensor_graph_reduce(const dtensor_graph* graph, const dtensor_tensor* rows, dtensor_tensor** result) {
  return apply(__func__, graph, rows, result, &Graph::stored, &Graph::owned,
               [](const Graph& g, const at::Tensor& x) { return g.halo.reduce(x); });
}

dtensor_status dtensor_graph_gather_source(const dtensor_graph* graph, const dtensor_tensor* rows,
                                           dtensor_tensor** result) {
  return apply(__func__, graph, rows, result, &Graph::stored, &Graph::edges,
               [](const Graph& g, const at::Tensor& x) { return x.index_select(0, g.source.to(x.device())); });
}

dtensor_status dtensor_graph_gather_target(const dtensor_graph* graph, const dtensor_tensor* rows,
                                           dtensor_tensor** result) {
  return apply(__func__, graph, rows, result, &Graph::stored, &Graph::edges,
               [](const Graph& g, const at::Tensor& x) { return x.index_select(0, g.target.to(x.device())); });
}

dtensor_status dtensor_graph_scatter(const dtensor_graph* graph, const dtensor_tensor* rows, dtensor_tensor** result) {
  return apply(__func__, graph, rows, result, &Graph::edges, &Graph::owned, [](const Graph& g, const at::Tensor& x) {
    at::DimVector sizes(x.sizes());
    sizes[0] = g.halo.owned();
    return at::zeros(sizes, x.options()).index_add(0, g.target.to(x.device()), x);
  });
}
