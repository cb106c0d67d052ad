// Pipelines and their schedules. Stages and losses are Python functions. The library calls them without the GIL, and
// pybind11's function wrappers acquire it.
#include "dtensor/pipeline.h"

#include "bind.h"

namespace dtensor::python {
namespace {

namespace pl = dtensor::pipeline;

std::vector<std::vector<std::string>> actions_of(const pl::Schedule& schedule) {
  std::vector<std::vector<std::string>> ranks;
  for (const auto& line : schedule.ranks) {
    auto& words = ranks.emplace_back();
    for (const auto& action : line) words.push_back(pl::to_string(action));
  }
  return ranks;
}

pl::Schedule with_communication(const pl::Schedule& schedule, std::optional<int> unsharded_stages, bool reduce_grad,
                                bool rendezvous) {
  pl::CommunicationOptions options;
  options.unsharded_stages = unsharded_stages;
  options.reduce_grad = reduce_grad;
  options.rendezvous = rendezvous;
  return pl::with_communication(schedule, options);
}

py::dict check(const pl::Schedule& schedule, int stages, int microbatches, int live_microbatches, bool forward_only) {
  pl::Schedule::Limits limits;
  limits.stages = stages;
  limits.microbatches = microbatches;
  limits.live_microbatches = live_microbatches;
  limits.forward_only = forward_only;
  const auto report = pl::check(schedule, limits);
  return py::dict(py::arg("in_order") = report.in_order, py::arg("batched") = report.batched,
                  py::arg("rendezvous") = report.rendezvous, py::arg("live_activations") = report.live_activations);
}

py::dict simulate(const pl::Schedule& schedule, double forward, double backward, double backward_input,
                  double backward_weight, double communication) {
  pl::Costs costs;
  costs.forward = forward;
  costs.backward = backward;
  costs.backward_input = backward_input;
  costs.backward_weight = backward_weight;
  costs.communication = communication;
  const auto timeline = pl::simulate(schedule, costs);
  return py::dict(py::arg("makespan") = timeline.makespan, py::arg("bubble") = timeline.bubble,
                  py::arg("svg") = pl::schedule_svg(timeline.ranks));
}

void bind_schedule(py::module_& module) {
  py::class_<pl::Schedule>(module, "Schedule", "The actions of each pipeline rank in one step, in order.")
      .def_static("parse", &pl::Schedule::parse, py::arg("text"), "Inverse of str(); one line for each rank.")
      .def_property_readonly("stages", &pl::Schedule::stages)
      .def_property_readonly("microbatches", &pl::Schedule::microbatches)
      .def_property_readonly("actions", &actions_of, "Actions of each rank as strings: 0F3, 1SEND_B0, 2UNSHARD.")
      .def("rank_of", &pl::Schedule::rank_of, py::arg("stage"))
      .def("__str__", &pl::Schedule::str)
      .def("__eq__",
           [](const pl::Schedule& a, const py::object& b) {
             return py::isinstance<pl::Schedule>(b) && a == b.cast<const pl::Schedule&>();
           })
      .def("__hash__", [](const pl::Schedule& s) { return std::hash<std::string>{}(s.str()); });
  module.def("schedule_names", &pl::schedule_names);
  module.def("make_schedule", &pl::make_schedule, py::arg("name"), py::arg("ranks"), py::arg("microbatches"),
             py::arg("chunks") = 0);
  module.def("schedule_with_communication", &with_communication, py::arg("schedule"), py::arg("unsharded_stages") = 1,
             py::arg("reduce_grad") = true, py::arg("rendezvous") = false);
  module.def("check_schedule", &check, py::arg("schedule"), py::arg("stages") = 0, py::arg("microbatches") = 0,
             py::arg("live_microbatches") = 0, py::arg("forward_only") = false);
  module.def("live_activations", &pl::live_activations, py::arg("schedule"));
  module.def("simulate_schedule", &simulate, py::arg("schedule"), py::arg("forward"), py::arg("backward"),
             py::arg("backward_input"), py::arg("backward_weight"), py::arg("communication"));
}

std::unique_ptr<pl::Pipeline> make_pipeline(const DeviceMesh& mesh, const pl::Schedule& schedule,
                                            pl::Pipeline::LossFunction loss, const std::string& axis,
                                            pl::WeightFunction weight) {
  pl::PipelineOptions options;
  options.axis = axis;
  if (weight) options.weight = std::move(weight);
  return std::make_unique<pl::Pipeline>(mesh, schedule, std::move(loss), std::move(options));
}

std::pair<at::Tensor, std::vector<int>> step(pl::Pipeline& pipeline, const std::vector<pl::Tensors>& inputs,
                                             const std::vector<pl::Tensors>& targets, double loss_scale) {
  pl::StepOptions options;
  options.loss_scale = loss_scale;
  auto result = pipeline.step(inputs, targets, options);
  return {std::move(result.loss), std::move(result.live_activations)};
}

}  // namespace

void bind_pipeline(py::module_& module) {
  bind_schedule(module);
  module.def("valid_targets", &pl::valid_targets, py::arg("ignore_index") = -100);
  module.def("microbatches", &pl::microbatches, py::arg("batch"), py::arg("count"), ReleaseGil(),
             "Splits the batch into `count` parts along dimension 0; their sizes differ by at most one.");
  py::class_<pl::Pipeline>(module, "Pipeline")
      .def(py::init(without_gil(&make_pipeline)), py::arg("mesh"), py::arg("schedule"), py::arg("loss"),
           py::arg("axis"), py::arg("weight"))
      .def("stages", &pl::Pipeline::stages)
      .def("last_stage", &pl::Pipeline::last_stage)
      .def("stage_mesh",
           [](const pl::Pipeline& pipeline, int stage) -> std::optional<DeviceMesh> {
             DeviceMesh mesh = pipeline.stage_mesh(stage);
             if (!mesh) return std::nullopt;
             return mesh;
           })
      .def("schedule", &pl::Pipeline::schedule)
      .def(
          "set_stage",
          [](pl::Pipeline& pipeline, int stage, pl::StageFunction forward,
             std::optional<std::vector<at::Tensor>> parameters) {
            if (!parameters) return pipeline.set_stage(stage, std::move(forward));
            pipeline.set_stage(stage, std::move(forward), std::move(*parameters));
          },
          ReleaseGil())
      .def("tie", &pl::Pipeline::tie, ReleaseGil())
      .def("step", &step, ReleaseGil())
      .def("evaluate", &pl::Pipeline::evaluate, ReleaseGil())
      .def("clip_grad_norm_", &pl::Pipeline::clip_grad_norm_, ReleaseGil());
}

}  // namespace dtensor::python
