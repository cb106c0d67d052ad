// The report of a dry run (simulate), and steps.
#include "dtensor/dry_run.h"

#include "bind.h"

namespace dtensor::python {
namespace {

py::dict by_kind(const DryRunReport& report) {
  py::dict bytes;
  for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
    bytes[to_string(static_cast<MemoryKind>(kind))] = report.peak_by_kind[kind];
  }
  return bytes;
}

py::dict collectives(const DryRunReport& report) {
  py::dict counts;
  for (const auto& [key, count] : report.collectives) {
    counts[py::make_tuple(key.first, key.second)] = py::make_tuple(count.calls, count.bytes);
  }
  return counts;
}

py::dict operators(const DryRunReport& report) {
  py::dict counts;
  for (const auto& [name, count] : report.operators) {
    counts[py::str(name)] = py::make_tuple(count.calls, count.flops, count.bytes);
  }
  return counts;
}

}  // namespace

void bind_dry_run(py::module_& module) {
  py::class_<DryRunReport>(module, "DryRunReport",
                           "What one rank of a program needs since the last begin_step(), or since the start.")
      .def_readonly("rank", &DryRunReport::rank)
      .def_readonly("ranks", &DryRunReport::ranks)
      .def_property_readonly(
          "peak_bytes", [](const DryRunReport& report) { return report.peak.bytes; }, "Highest sum of live tensors.")
      .def_property_readonly(
          "peak_bytes_before", [](const DryRunReport& report) { return report.peak_before.bytes; },
          "The peak before that step.")
      .def_property_readonly("peak_by_kind", &by_kind, "Bytes at the peak by kind of memory.")
      .def_property_readonly("collectives", &collectives, "(calls, bytes received) by (kind, mesh axis).")
      .def_property_readonly("operators", &operators, "(calls, FLOPs, bytes read and written) by name.")
      .def_readonly("peers", &DryRunReport::peers, "Reports of the other ranks of this rank's pipelines.")
      .def("fits", &DryRunReport::fits, py::arg("bytes"), "Whether this rank and its peers need at most these bytes.")
      .def("table", &DryRunReport::table, py::arg("limit") = py::none(), "For a terminal; `limit` in bytes.")
      .def("json", &DryRunReport::json, "For other programs.");
  module.def("begin_step", &StepRecorder::begin_step);
  module.def("is_dry_run", &is_dry_run);
}

}  // namespace dtensor::python
