// DTensors: creation, redistribution and access to local and full tensors.
#include <torch/csrc/autograd/python_variable.h>

#include "bind.h"
#include "internal/aten_scopes.h"
#include "internal/parameter_swap.h"
#include "internal/saved_activation.h"

namespace dtensor::python {
namespace {

using Sizes = std::vector<std::int64_t>;
using MaybePlacements = std::optional<Placements>;

// None: replicated on every mesh dimension, as in torch.distributed.tensor.
Placements placements_or_replicate(const DeviceMesh& mesh, MaybePlacements placements) {
  return placements ? std::move(*placements) : Placements(static_cast<std::size_t>(mesh.ndim()), Replicate());
}

at::Tensor redistribute_one(const at::Tensor& tensor, const std::optional<DeviceMesh>& mesh,
                            MaybePlacements placements) {
  const DTensor source(tensor);
  if (mesh && *mesh != source.mesh()) {
    return source.redistribute(*mesh, placements_or_replicate(*mesh, std::move(placements)));
  }
  return source.redistribute(placements ? std::move(*placements) : source.placements());
}

// The sizes that torch.distributed.tensor assumes: even shards. Used on ranks outside the mesh, which store no part of
// the tensor and do not communicate with the mesh.
Sizes sizes_of_even_parts(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements) {
  Sizes sizes = local.sizes().vec();
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_shard()) continue;
    const std::int64_t dim = at::maybe_wrap_dim(placements[axis].dim(), local.dim());
    sizes[static_cast<std::size_t>(dim)] *= mesh.size(static_cast<std::int64_t>(axis));
  }
  return sizes;
}

at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh, MaybePlacements placements,
                      const std::optional<Sizes>& shape, const std::optional<Sizes>& stride) {
  Placements wanted = placements_or_replicate(mesh, std::move(placements));
  Sizes sizes = shape.value_or(Sizes{});
  if (!shape && !mesh.is_member()) sizes = sizes_of_even_parts(local, mesh, wanted);
  return DTensor::from_local(local, mesh, std::move(wanted), sizes, stride.value_or(Sizes{}));
}

at::Tensor distribute(const at::Tensor& tensor, const DeviceMesh& mesh, MaybePlacements placements,
                      std::optional<int> source) {
  Placements wanted = placements_or_replicate(mesh, std::move(placements));
  return source ? distribute_tensor_from(tensor, mesh, std::move(wanted), *source)
                : distribute_tensor(tensor, mesh, std::move(wanted));
}

// Outside the mesh: a tensor without elements, as in torch.distributed.tensor.
at::Tensor to_local(const at::Tensor& tensor, Placements grad_placements) {
  const DTensor source(tensor);
  if (C10_LIKELY(source.mesh().is_member())) return source.to_local(std::move(grad_placements));
  const NoMeshScopeGuard regular;
  return at::empty({0}, at::TensorOptions(tensor.dtype()).device(source.mesh().device_type()));
}

std::vector<DTensor> as_dtensors(const std::vector<at::Tensor>& tensors) {
  std::vector<DTensor> result;
  for (const at::Tensor& tensor : tensors) result.emplace_back(tensor);
  return result;
}

std::vector<at::Tensor> as_tensors(const std::vector<DTensor>& tensors) { return {tensors.begin(), tensors.end()}; }

std::vector<at::Tensor> redistribute_list(const std::vector<at::Tensor>& tensors, std::vector<Placements> placements,
                                          const std::optional<DeviceMesh>& mesh) {
  const std::vector<DTensor> list = as_dtensors(tensors);
  return as_tensors(mesh ? redistribute(list, *mesh, std::move(placements))
                         : redistribute(list, std::move(placements)));
}

struct Kind {
  std::optional<at::ScalarType> dtype;
  bool requires_grad = false;
};

at::Tensor made(const DTensor& tensor, const Kind& kind) {
  return kind.requires_grad ? tensor.set_requires_grad(true) : tensor;
}

at::TensorOptions options(const Kind& kind) { return at::TensorOptions().dtype(kind.dtype); }

using Number = std::variant<bool, std::int64_t, double, c10::complex<double>>;

at::Scalar scalar(const Number& number) {
  return std::visit([](auto value) { return at::Scalar(value); }, number);
}

using Factory = DTensor (*)(at::IntArrayRef, const DeviceMesh&, Placements, at::TensorOptions);

void bind_factory(py::module_& module, const char* name, Factory make) {
  module.def(
      name,
      [make](const Sizes& size, const DeviceMesh& mesh, MaybePlacements placements, std::optional<at::ScalarType> dtype,
             bool requires_grad) {
        const Kind kind{dtype, requires_grad};
        return made(make(size, mesh, placements_or_replicate(mesh, std::move(placements)), options(kind)), kind);
      },
      py::arg("size"), py::arg("device_mesh"), py::arg("placements"), py::arg("dtype"), py::arg("requires_grad"),
      ReleaseGil());
}

std::vector<at::Tensor> map_local(const py::function& fn, const std::vector<at::Tensor>& inputs,
                                  const std::vector<Placements>& out_placements, std::vector<Placements> in_placements,
                                  std::vector<Placements> in_grad_placements) {
  const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> call =
      [&](const std::vector<at::Tensor>& locals) {
        const py::gil_scoped_acquire lock;
        return fn(*py::cast(locals)).cast<std::vector<at::Tensor>>();
      };
  LocalMapOptions options;
  options.in_placements = std::move(in_placements);
  options.in_grad_placements = std::move(in_grad_placements);
  const py::gil_scoped_release no_gil;
  return local_map(call, inputs, out_placements, options);
}

void bind_conversions(py::module_& module) {
  module.def("is_dtensor", [](const py::handle& value) {
    return THPVariable_Check(value.ptr()) && is_dtensor(THPVariable_Unpack(value.ptr()));
  });
  module.def("placements_of", [](const at::Tensor& t) { return py::tuple(py::cast(DTensor(t).placements())); });
  module.def("mesh_of", [](const at::Tensor& t) { return DTensor(t).mesh(); });
  module.def("spec_of", [](const at::Tensor& t) { return DTensor(t).spec_str(); });
  module.def("generation_of", [](const at::Tensor& t) { return DTensor(t).generation(); });
  module.def("record_parameter_swap", [](const at::Tensor& former) { record_parameter_swap(former); });
  module.def("is_swapped_out", [](const at::Tensor& parameter) { return is_swapped_out(parameter); });
  module.def("parameter_swap_count", &parameter_swap_count);
  module.def("from_local", &from_local, ReleaseGil());
  module.def("to_local", &to_local, ReleaseGil());
  module.def(
      "full_tensor", [](const at::Tensor& t, Placements grad) { return DTensor(t).full_tensor(std::move(grad)); },
      ReleaseGil());
  module.def("redistribute", &redistribute_one, ReleaseGil());
  module.def("gather_activation", &gather_activation, ReleaseGil());
  module.def(
      "redistribute_in_place",
      [](const at::Tensor& t, Placements placements) {
        DTensor view(t);
        view.redistribute_(std::move(placements));
      },
      ReleaseGil());
  module.def("redistribute_list", &redistribute_list, ReleaseGil());
  module.def("distribute_tensor", &distribute, ReleaseGil());
  module.def("local_map", &map_local);
}

void bind_random(py::module_& module) {
  module.def(
      "manual_seed", [](const DeviceMesh& mesh, std::uint64_t seed) { manual_seed(mesh, seed); }, ReleaseGil());
  module.def("get_rng_state", [](const DeviceMesh& mesh) {
    const RngState state = get_rng_state(mesh);
    return std::pair(state.seed, state.counter);
  });
  module.def("set_rng_state", [](const DeviceMesh& mesh, std::pair<std::uint64_t, std::uint64_t> state) {
    set_rng_state(mesh, {state.first, state.second});
  });
}

}  // namespace

void bind_tensor(py::module_& module) {
  bind_conversions(module);
  bind_random(module);
  bind_factory(module, "zeros", &zeros);
  bind_factory(module, "ones", &ones);
  bind_factory(module, "empty", &empty);
  bind_factory(module, "rand", &rand);
  bind_factory(module, "randn", &randn);
  module.def(
      "full",
      [](const Sizes& size, const Number& value, const DeviceMesh& mesh, MaybePlacements placements,
         std::optional<at::ScalarType> dtype, bool requires_grad) {
        const Kind kind{dtype, requires_grad};
        return made(
            full(size, scalar(value), mesh, placements_or_replicate(mesh, std::move(placements)), options(kind)), kind);
      },
      ReleaseGil());
  module.def(
      "arange",
      [](const Number& end, const DeviceMesh& mesh, MaybePlacements placements, std::optional<at::ScalarType> dtype) {
        return at::Tensor(
            arange(scalar(end), mesh, placements_or_replicate(mesh, std::move(placements)), options({dtype})));
      },
      ReleaseGil());
  bind_scope<MeshScope>(module, "MeshScope", "While open, factory functions on this thread create DTensors on `mesh`.")
      .def(py::init([](DeviceMesh mesh, MaybePlacements placements) {
             return ScopeContextManager<MeshScope>(
                 [=] { return std::make_unique<MeshScope>(mesh, placements.value_or(Placements{})); });
           }),
           py::arg("mesh"), py::arg("placements") = py::none());
}

}  // namespace dtensor::python
