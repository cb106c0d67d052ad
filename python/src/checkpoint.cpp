// Checkpoints: lists of named tensors and numbers or strings; checkpoint.py flattens nested dictionaries.
#include <unordered_set>

#include "bind.h"
#include "dtensor/checkpoint.h"

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

// Names of entries that accept any saved value; "losses." stands for "losses.0", "losses.1" and so on.
using OpenNames = std::unordered_set<std::string>;

bool is_open(const OpenNames& open, const std::string& name) {
  const auto digits = name.find_last_not_of("0123456789") + 1;
  return open.contains(name) || (digits < name.size() && open.contains(name.substr(0, digits)));
}

// A state dictionary as a Checkpoint. The Checkpoint refers to the tensors and to the values that are stored here.
class State {
 public:
  State(const StateTensors& tensors, CheckpointValues values, OpenNames open = {}) : values_(std::move(values)) {
    state_.add("", tensors);
    state_.add("", values_, [open = std::move(open)](const std::string& name) { return is_open(open, name); });
  }
  Checkpoint& get() { return state_; }
  const CheckpointValues& values() const { return values_; }

 private:
  CheckpointValues values_;
  Checkpoint state_;
};

// The path (empty: no checkpoint was found), the newer checkpoints that are damaged, and the values that were read.
using Loaded = std::tuple<std::string, std::vector<std::string>, CheckpointValues>;

Loaded loaded(LoadedCheckpoint found, const State& state) {
  return {std::move(found.path), std::move(found.skipped_checkpoints), state.values()};
}

void bind_series(py::module_& module) {
  py::class_<CheckpointSeries>(module, "CheckpointSeries")
      .def(py::init(without_gil(+[](const std::string& root, std::int64_t keep) {
        return std::make_unique<CheckpointSeries>(root, current_world(), keep);
      })))
      .def(
          "save",
          [](CheckpointSeries& series, const StateTensors& tensors, const CheckpointValues& values, std::int64_t step,
             bool sync, bool background) {
            State state(tensors, values);
            const auto options = save_options(sync, false);
            background ? series.save_async(state.get(), step, options) : series.save(state.get(), step, options);
          },
          ReleaseGil())
      .def("finish", &CheckpointSeries::finish, ReleaseGil())
      .def(
          "load_newest",
          [](CheckpointSeries& series, const StateTensors& tensors, const CheckpointValues& values,
             const OpenNames& open, bool allow_cast) {
            State state(tensors, values, open);
            return loaded(series.load_newest(state.get(), load_options(true, false, false, allow_cast)), state);
          },
          ReleaseGil());
  module.def(
      "load_newest",
      [](const std::string& root, const StateTensors& tensors, const CheckpointValues& values, const OpenNames& open,
         bool allow_cast) {
        State state(tensors, values, open);
        const auto options = load_options(true, false, false, allow_cast);
        return loaded(load_newest(state.get(), root, current_world(), options), state);
      },
      ReleaseGil());
  module.def("checkpoint_steps", &checkpoint_steps, py::arg("root"));
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  py::class_<PendingSave>(module, "PendingSave",
                          "An asynchronous save. The saved tensors may be modified while it runs.")
      .def("done", &PendingSave::done, "Whether this rank has written its shard.")
      .def("wait", &PendingSave::wait, ReleaseGil(),
           "Completes the save. Collective. Until then the folder keeps its former content.");
  module.def(
      "save_state",
      [](const std::string& directory, const StateTensors& tensors, const CheckpointValues& values, bool sync,
         bool keep_foreign) {
        save_state(directory, current_world(), tensors, values, save_options(sync, keep_foreign));
      },
      ReleaseGil());
  module.def(
      "save_state_async",
      [](const std::string& directory, const StateTensors& tensors, const CheckpointValues& values, bool sync,
         bool keep_foreign) {
        return save_state_async(directory, current_world(), tensors, values, save_options(sync, keep_foreign));
      },
      ReleaseGil());
  module.def(
      "load_state",
      [](const std::string& path, const StateTensors& tensors, const CheckpointValues& values, const OpenNames& open,
         bool verify, bool allow_missing, bool allow_unexpected, bool allow_cast) {
        State state(tensors, values, open);
        state.get().load(path, current_world(), load_options(verify, allow_missing, allow_unexpected, allow_cast));
        return state.values();
      },
      ReleaseGil());
  module.def(
      "broadcast_state",
      [](const StateTensors& full, const StateTensors& targets, int source) {
        broadcast_state(full, current_world(), targets, source);
      },
      ReleaseGil());
  module.def("read_checkpoint_index", &describe_index);
  bind_series(module);
}

}  // namespace dtensor::python
