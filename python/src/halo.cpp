// Halos of distributed graphs.
#include "dtensor/halo.h"

#include "bind.h"

namespace dtensor::python {
namespace {

void bind_graph_halo(py::module_& module) {
  py::class_<GraphHalo>(module, "GraphHalo",
                        "Which rows each rank sends to which: send_lists[i] are the rows of this rank (int64 [n]) that "
                        "rank i of `ranks`\n"
                        "receives. `owned`: the number of rows of this rank. `receive_counts`: if given, the number of "
                        "rows that this rank\n"
                        "expects from each rank; a difference is an error on every rank. Collective.")
      .def(py::init(without_gil(+[](const Communicator& ranks, std::int64_t owned, std::vector<at::Tensor> send_lists,
                                    std::vector<std::int64_t> receive_counts) {
             return std::make_unique<GraphHalo>(ranks, owned, send_lists, receive_counts);
           })),
           py::arg("ranks"), py::arg("owned"), py::arg("send_lists"),
           py::arg("receive_counts") = std::vector<std::int64_t>())
      .def_property_readonly("owned", &GraphHalo::owned, "Number of rows of this rank.")
      .def_property_readonly("ghosts", &GraphHalo::ghosts, "Number of rows that this rank receives.")
      .def_property_readonly("send_counts", &GraphHalo::send_counts, "Rows for each rank.")
      .def_property_readonly("receive_counts", &GraphHalo::receive_counts, "Rows from each rank.")
      .def_property_readonly("ranks", &GraphHalo::ranks, "The communicator.")
      .def("exchange", &GraphHalo::exchange, py::arg("rows"), ReleaseGil(),
           "rows [owned, ...] followed by the ghosts, by sending rank, then in the order of its list. Differentiable "
           "any\n"
           "number of times. Collective.")
      .def("reduce", &GraphHalo::reduce, py::arg("rows"), ReleaseGil(),
           "The adjoint of exchange: adds the ghosts of rows [owned + ghosts, ...] to the owners' rows. Collective.");
}

void bind_partition(py::module_& module) {
  py::class_<GraphPart>(module, "GraphPart", "The part of a graph that one rank computes.")
      .def_readonly("nodes", &GraphPart::nodes, "Owned nodes of the graph, ascending.")
      .def_readonly("ghosts", &GraphPart::ghosts, "Nodes of other ranks, in the order of GraphHalo.exchange.")
      .def_readonly("edges", &GraphPart::edges, "Positions of the part's edges in the graph.")
      .def_readonly("source", &GraphPart::source, "Rows of the sources of these edges.")
      .def_readonly("target", &GraphPart::target, "Rows of the targets of these edges.")
      .def_readonly("send_lists", &GraphPart::send_lists, "The send lists for GraphHalo.");
  module.def(
      "graph_part", &graph_part, py::arg("source"), py::arg("target"), py::arg("owner"), py::arg("rank"),
      py::arg("ranks"), ReleaseGil(),
      "The part of `rank`, one of `ranks`, of a graph that every rank has: edges source[i] -> target[i] belong to\n"
      "the rank of their target; owner[n] is the rank of node n.");
  module.def("partition_graph", &partition_graph, py::arg("source"), py::arg("target"), py::arg("nodes"),
             py::arg("ranks"), ReleaseGil(),
             "The rank of each node, int64 [nodes], by METIS: few edges between ranks. Collective.");
  module.def("is_metis_available", &is_metis_available, "Whether this build of the library has METIS.");
}

}  // namespace

void bind_halo(py::module_& module) {
  bind_graph_halo(module);
  bind_partition(module);
}

}  // namespace dtensor::python
