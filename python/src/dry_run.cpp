// The report of a dry run (simulate), the estimated time of its step, and steps.
#include "dtensor/dry_run.h"

#include "dtensor/estimate.h"
#include "dtensor/tensor.h"
#include "internal/memory_kind.h"

#include "bind.h"

namespace dtensor::python {
namespace {

py::dict by_kind(const DryRunReport& report) {
  py::dict bytes;
  for (std::size_t kind = 0; kind < std::tuple_size_v<MemoryByKind>; ++kind) {
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

// `kind`: as in peak_by_kind.
void set_kind(const at::Tensor& tensor, const std::string& kind) {
  for (std::size_t k = 0; k < std::tuple_size_v<MemoryByKind>; ++k) {
    const auto known = static_cast<MemoryKind>(k);
    if (kind == to_string(known)) set_memory_kind(is_dtensor(tensor) ? DTensor(tensor).to_local() : tensor, known);
  }
}

StepEstimate estimate(const DryRunReport& report, const HardwareModel& hardware) {
  TORCH_CHECK(!report.trace.events.empty(), "estimate: expected a report of simulate(..., hardware=hardware) whose ",
              "step runs operators");
  return estimate_step(report.trace, hardware);
}

void bind_estimates(py::module_& module) {
  py::class_<HardwareModel>(module, "HardwareModel",
                            "Rates and links of one rank, from a JSON table (`plan calibrate` measures one).")
      .def_static("read", &HardwareModel::read, py::arg("path"), "The table of a file.")
      .def_static("parse", &HardwareModel::parse, py::arg("json"))
      .def_readonly("name", &HardwareModel::name)
      .def_readonly("memory_bytes", &HardwareModel::memory_bytes, "Of one rank; 0: unknown.")
      .def_readonly("memory_reserve", &HardwareModel::memory_reserve, "Bytes of those that a step does not get.")
      .def("json", &HardwareModel::json);
  py::class_<StepEstimate>(module, "StepEstimate", "Estimated seconds of one rank's step.")
      .def_readonly("seconds", &StepEstimate::seconds, "Of the step: compute + exposed.")
      .def_readonly("compute", &StepEstimate::compute, "Of operators.")
      .def_readonly("communication", &StepEstimate::communication, "Of collectives, whether or not they are hidden.")
      .def_readonly("exposed", &StepEstimate::exposed, "While the rank waits for collectives.")
      .def("shares", &StepEstimate::shares, "Where the time goes, as text.")
      .def_readonly("compute_by_kind", &StepEstimate::compute_by_kind, "By product, attention, norm and elementwise.")
      .def_readonly("communication_by_axis", &StepEstimate::communication_by_axis, "By mesh axis.")
      .def_readonly("exposed_by_axis", &StepEstimate::exposed_by_axis, "By mesh axis.");
}

}  // namespace

void bind_dry_run(py::module_& module) {
  bind_estimates(module);
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
      .def("json", &DryRunReport::json, "For other programs.")
      .def("estimate", &estimate, py::arg("hardware"),
           "The step's time on that hardware, of this rank by itself: without waits for a pipeline's messages.")
      .def("chrome_trace", &step_chrome_trace, py::arg("hardware"), "The estimated step as JSON for Perfetto.")
      .def("memory_svg", &step_memory_svg, py::arg("hardware"), "A plot of the memory over the estimated step.");
  module.def("begin_step", &StepRecorder::begin_step);
  module.def("set_memory_kind", &set_kind, py::arg("tensor"), py::arg("kind"));
  module.def("is_dry_run", &is_dry_run);
}

}  // namespace dtensor::python
