// Fully sharded parameters. A Python module keeps its parameters in a dictionary, to which C++ cannot point:
// functions take names and tensors, and return the tensors that replace them.
#include "bind.h"
#include "internal/fsdp_call.h"
#include "internal/gather_extension.h"

namespace dtensor::python {
namespace {

NamedTensors slots_of(Named& named) {
  NamedTensors slots;
  for (auto& [name, tensor] : named) slots.emplace_back(name, &tensor);
  return slots;
}

std::pair<FsdpUnit, std::vector<at::Tensor>> shard(Named named, const DeviceMesh& mesh, const FsdpOptions& options) {
  FsdpUnit unit = fully_shard(slots_of(named), mesh, options);
  std::vector<at::Tensor> tensors;
  for (const auto& item : named) tensors.push_back(item.second);
  return {std::move(unit), std::move(tensors)};
}

// Casts parameters to their compute dtype until close().
class Casts {
 public:
  explicit Casts(Named named)
      : named_(std::make_shared<Named>(std::move(named))),
        scope_(std::make_unique<ComputeScope>(slots_of(*named_), named_)) {}
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> result;
    for (const auto& item : *named_) result.push_back(item.second);
    return result;
  }
  at::Tensor output(const at::Tensor& result) const { return scope_->output(result); }
  void close() { scope_.reset(); }

 private:
  std::shared_ptr<Named> named_;
  std::unique_ptr<ComputeScope> scope_;
};

py::dict stats_of(const FsdpUnit& unit) {
  const FsdpStats s = unit.stats();
  return py::dict(py::arg("all_gathers") = s.all_gathers, py::arg("reduce_scatters") = s.reduce_scatters,
                  py::arg("all_reduces") = s.all_reduces, py::arg("gathered_bytes") = s.gathered_bytes,
                  py::arg("peak_gathered_bytes") = s.peak_gathered_bytes,
                  py::arg("unreduced_bytes") = s.unreduced_bytes,
                  py::arg("peak_unreduced_bytes") = s.peak_unreduced_bytes);
}

void bind_options(py::module_& module) {
  py::class_<MixedPrecision>(module, "MixedPrecision")
      .def(py::init<>())
      .def_readwrite("param_dtype", &MixedPrecision::param_dtype)
      .def_readwrite("reduce_dtype", &MixedPrecision::reduce_dtype)
      .def_readwrite("param_dtype_of", &MixedPrecision::param_dtype_of);
  py::class_<FsdpOptions>(module, "FsdpOptions")
      .def(py::init<>())
      .def_readwrite("reshard_after_forward", &FsdpOptions::reshard_after_forward)
      .def_readwrite("precision", &FsdpOptions::precision)
      .def_readwrite("shard_axes", &FsdpOptions::shard_axes)
      .def_readwrite("replicate_axis", &FsdpOptions::replicate_axis)
      .def_readwrite("cpu_offload", &FsdpOptions::cpu_offload)
      .def("set_shard_dims", [](FsdpOptions& options, std::map<std::string, std::int64_t> dims) {
        options.shard_dim = [dims = std::move(dims)](const std::string& name, const at::Tensor&) {
          const auto found = dims.find(name);
          return found == dims.end() ? std::int64_t{0} : found->second;
        };
      });
}

void bind_units(py::module_& module) {
  py::class_<FsdpUnit>(module, "FsdpUnit", "Parameters that are gathered and reduced in one collective.")
      .def("unshard", &FsdpUnit::unshard, ReleaseGil())
      .def("reshard", &FsdpUnit::reshard)
      .def("set_requires_gradient_sync", &FsdpUnit::set_requires_gradient_sync)
      .def("set_requires_all_reduce", &FsdpUnit::set_requires_all_reduce)
      .def("set_reshard_after_forward", &FsdpUnit::set_reshard_after_forward)
      .def("set_reshard_after_backward", &FsdpUnit::set_reshard_after_backward)
      .def("set_gradient_divide_factor", &FsdpUnit::set_gradient_divide_factor)
      .def("set_reduce_scatter_unused_params", &FsdpUnit::set_reduce_scatter_unused_params)
      .def("stats", &stats_of);
  py::class_<Casts>(module, "Casts")
      .def(py::init(without_gil(+[](Named tensors) { return std::make_unique<Casts>(std::move(tensors)); })))
      .def("tensors", &Casts::tensors)
      .def("close", &Casts::close);
  py::class_<FsdpCall>(module, "FsdpCall", "One call of a module with local semantics.")
      .def(py::init(without_gil(+[](std::vector<at::Tensor> parameters, std::vector<at::Tensor> inputs,
                                    std::function<void(bool)> on_backward) {
        return std::make_unique<FsdpCall>(parameters, inputs, std::move(on_backward));
      })))
      .def("tensors", &FsdpCall::tensors)
      .def("watch", [](FsdpCall& call, const std::vector<at::Tensor>& outputs) { call.watch(outputs); })
      .def(
          "finish",
          [](FsdpCall& call, const std::vector<at::Tensor>& outputs, bool keep) { call.finish(outputs, keep); },
          ReleaseGil());
  module.def("set_gather_extension",
             [](const at::Tensor& parameter, decltype(GatherExtension::contribute) contribute,
                decltype(GatherExtension::unshard) unshard, decltype(GatherExtension::refill) refill) {
               set_gather_extension(parameter, {std::move(contribute), std::move(unshard), std::move(refill)});
             });
  module.def("units_of", [](const std::vector<at::Tensor>& parameters) { return units_of(parameters); });
  module.def("fully_shard", &shard, ReleaseGil());
  module.def(
      "reduce_gradients", [](const std::vector<at::Tensor>& tensors) { reduce_gradients(tensors); }, ReleaseGil());
}

void bind_scopes(py::module_& module) {
  bind_scope<NoGradientSync>(module, "NoGradientSync",
                             "While open, backward passes accumulate gradients unreduced; the next one outside reduces "
                             "them.")
      .def(py::init(
          [] { return ScopeContextManager<NoGradientSync>([] { return std::make_unique<NoGradientSync>(); }); }));
  bind_scope<NoReplicaSync>(module, "NoReplicaSync",
                            "While open, backward passes skip only the all-reduce over replicas (HSDP).")
      .def(py::init(
          [] { return ScopeContextManager<NoReplicaSync>([] { return std::make_unique<NoReplicaSync>(); }); }));
}

}  // namespace

void bind_parallel(py::module_& module) {
  bind_options(module);
  bind_units(module);
  bind_scopes(module);
  module.def(
      "linear_cross_entropy",
      [](const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, std::int64_t ignore_index,
         double label_smoothing, double z_loss, std::int64_t chunk) {
        CrossEntropyOptions options;
        options.ignore_index = ignore_index;
        options.label_smoothing = label_smoothing;
        options.z_loss = z_loss;
        return linear_cross_entropy(hidden, weight, targets, options, chunk);
      },
      ReleaseGil());
}

}  // namespace dtensor::python
