// Checkpoints: lists of named tensors and plain values; nested dictionaries are flattened in checkpoint.py.
#include "bind.h"

namespace dtensor::python {
namespace {

SaveOptions save_options(bool sync, bool keep_foreign) {
  SaveOptions options;
  options.sync = sync;
  options.keep_foreign = keep_foreign;
  return options;
}

LoadOptions load_options(bool verify, bool allow_missing, bool allow_unexpected, bool allow_cast) {
  LoadOptions options;
  options.verify = verify;
  options.allow_missing = allow_missing;
  options.allow_unexpected = allow_unexpected;
  options.allow_cast = allow_cast;
  return options;
}

py::dict describe_index(const std::string& path) {
  const CheckpointIndex index = read_checkpoint_index(path);
  py::dict tensors;
  for (const auto& entry : index.entries) {
    const bool known = entry.dtype != at::ScalarType::Undefined;
    tensors[py::str(entry.name)] = py::make_tuple(py::cast(entry.sizes), known ? py::cast(entry.dtype) : py::none());
  }
  return py::dict(py::arg("tensors") = tensors, py::arg("values") = index.values);
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  py::class_<PendingSave>(module, "PendingSave", "A save under way: tensors may be changed again.")
      .def("done", &PendingSave::done, "Whether this rank has written its part.")
      .def("wait", &PendingSave::wait, NoLock(),
           "Finishes the save. Collective. Without it the folder stays as it was.");
  module.def(
      "save_state",
      [](const std::string& directory, const StateTensors& tensors, const CheckpointValues& values, bool sync,
         bool keep_foreign) {
        save_state(directory, current_world(), tensors, values, save_options(sync, keep_foreign));
      },
      NoLock());
  module.def(
      "save_state_async",
      [](const std::string& directory, const StateTensors& tensors, const CheckpointValues& values, bool sync,
         bool keep_foreign) {
        return save_state_async(directory, current_world(), tensors, values, save_options(sync, keep_foreign));
      },
      NoLock());
  module.def(
      "load_state",
      [](const std::string& path, const StateTensors& targets, bool verify, bool allow_missing, bool allow_unexpected,
         bool allow_cast) {
        return load_state(path, current_world(), targets,
                          load_options(verify, allow_missing, allow_unexpected, allow_cast));
      },
      NoLock());
  module.def("read_checkpoint_index", &describe_index);
}

}  // namespace dtensor::python
