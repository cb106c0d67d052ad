// DeviceMesh with the names of torch.distributed.device_mesh.

#include "bind.h"
#include "internal/aten_scopes.h"
#include "internal/ranks/mpi_handle.h"

namespace dtensor::python {
namespace {

using Axis = std::variant<std::int64_t, std::string>;

std::int64_t axis_index(const DeviceMesh& mesh, const Axis& axis) {
  if (const auto* name = std::get_if<std::string>(&axis)) return mesh.dim(*name);
  const std::int64_t index = std::get<std::int64_t>(axis);
  const std::int64_t wrapped = index < 0 ? index + mesh.ndim() : index;
  TORCH_CHECK_INDEX(wrapped >= 0 && wrapped < mesh.ndim(), "mesh dimension ", index, " is out of range for ",
                    mesh.str());
  return wrapped;
}

c10::DeviceType device_type(const std::string& name) { return c10::Device(name).type(); }

py::object names_of(const DeviceMesh& mesh) {
  for (const auto& name : mesh.names()) {
    if (!name.empty()) return py::tuple(py::cast(mesh.names()));
  }
  return py::none();
}

// A mesh from lists, nested lists, tensors or numpy arrays of ranks in row-major order.
DeviceMesh from_ranks(const std::string& device, const py::object& ranks,
                      std::optional<std::vector<std::string>> names) {
  const auto given = py::module_::import("torch").attr("as_tensor")(ranks).cast<at::Tensor>();
  TORCH_CHECK_TYPE(given.numel() == 0 || at::isIntegralType(given.scalar_type(), /*includeBool=*/false),
                   "DeviceMesh: expected integer ranks, got ", given.scalar_type());
  const auto all_ranks = given.to(at::kCPU, at::kLong);
  const at::Tensor rows = all_ranks.contiguous();
  const at::IntArrayRef list(rows.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(rows.numel()));
  const py::gil_scoped_release no_gil;
  const auto type = device_type(device);
  return device_mesh(world_on_device(current_world(), type), type, list, rows.sizes(),
                     names ? std::move(*names) : std::vector<std::string>{});
}

// Whether `value` is a mesh of torch.distributed.device_mesh. The module is not imported here: a program that created
// such a mesh has imported it.
bool is_torch_mesh(py::handle value) {
  const py::dict modules = py::module_::import("sys").attr("modules");
  const py::str name("torch.distributed.device_mesh");
  return modules.contains(name) && py::isinstance(value, modules[name].attr("DeviceMesh"));
}

// Converts a mesh of PyTorch. Ranks of torch.distributed are ranks of the world.
DeviceMesh mesh_of(const py::object& value) {
  if (py::isinstance<DeviceMesh>(value)) return value.cast<DeviceMesh>();
  TORCH_CHECK_TYPE(is_torch_mesh(value), "expected a DeviceMesh, got ", py::repr(value).cast<std::string>(),
                   ": create one with init_device_mesh(device_type, shape) or DeviceMesh(device_type, ranks)");
  return from_ranks(value.attr("device_type").cast<std::string>(), value.attr("mesh"),
                    value.attr("mesh_dim_names").cast<std::optional<std::vector<std::string>>>());
}

DeviceMesh init(const std::string& device, const std::vector<std::int64_t>& shape,
                std::optional<std::vector<std::string>> names, std::optional<Communicator> world,
                const std::optional<int>& mpi_handle) {
  TORCH_CHECK_VALUE(!world || !mpi_handle, "init_device_mesh: expected `world` or `comm`, got both");
  if (mpi_handle) world = communicator_of_mpi_handle(*mpi_handle);
  const auto type = device_type(device);
  return init_device_mesh(world_on_device(world ? *world : current_world(), type), type, shape,
                          names ? std::move(*names) : std::vector<std::string>{});
}

// Of mpi4py's communicators. Asked while Python's lock is held.
std::optional<int> mpi_handle_of(const py::object& comm) {
  if (comm.is_none()) return std::nullopt;
  TORCH_CHECK_TYPE(py::hasattr(comm, "py2f"), "init_device_mesh: expected `comm` to be a communicator of mpi4py, got ",
                   py::repr(comm).cast<std::string>());
  return comm.attr("py2f")().cast<int>();
}

std::int64_t size_of(const DeviceMesh& mesh, const std::optional<Axis>& dim) {
  return dim ? mesh.size(axis_index(mesh, *dim)) : mesh.size();
}

std::int64_t local_rank(const DeviceMesh& mesh, const std::optional<Axis>& dim) {
  TORCH_CHECK(dim || mesh.ndim() == 1, "get_local_rank: Optional kwarg `mesh_dim` needs to be specified when ",
              "device_mesh.ndim > 1, as it is for ", mesh.str());
  const auto at = mesh.coordinate();
  TORCH_CHECK(at, "this rank is not in ", mesh.str());
  return (*at)[static_cast<std::size_t>(axis_index(mesh, dim.value_or(Axis(std::int64_t{0}))))];
}

void bind_values(py::class_<DeviceMesh>& mesh) {
  mesh.def_property_readonly("device_type",
                             [](const DeviceMesh& m) { return c10::DeviceTypeName(m.device_type(), true); })
      .def_property_readonly("mesh_dim_names", &names_of, "Names of the dimensions; None if they have none.")
      .def_property_readonly("ndim", &DeviceMesh::ndim)
      .def_property_readonly("shape", [](const DeviceMesh& m) { return py::tuple(py::cast(m.shape().vec())); })
      .def_property_readonly(
          "mesh",
          [](const DeviceMesh& m) {
            const NoMeshScopeGuard regular;  // inside a MeshScope the result is a regular tensor, too
            return at::tensor(m.ranks(), at::kLong).reshape(m.shape());
          },
          "World ranks, an int64 tensor of the mesh's shape.")
      .def("size", &size_of, py::arg("mesh_dim") = py::none(), "Number of ranks of the mesh, or of one dimension.")
      .def("get_coordinate", &DeviceMesh::coordinate, "This rank's index in each dimension; None outside the mesh.")
      .def("get_local_rank", &local_rank, py::arg("mesh_dim") = py::none())
      .def(
          "get_rank", [](const DeviceMesh& m) { return m.world().rank(); }, "This rank's world rank.")
      .def("is_member", &DeviceMesh::is_member)
      .def("diagram", &DeviceMesh::diagram, "A text diagram of the mesh as nested boxes.")
      .def("__repr__", &DeviceMesh::str)
      .def("__eq__",
           [](const DeviceMesh& a, const py::object& b) {
             return py::isinstance<DeviceMesh>(b) ? a == b.cast<const DeviceMesh&>()
                                                  : is_torch_mesh(b) && a == mesh_of(b);
           })
      .def("__hash__", [](const DeviceMesh& m) { return std::hash<std::string>{}(m.str()); });
}

// A slice refers to its root mesh: fully_shard(model, mesh["dp"]) looks up there which parameters are on mesh["tp"].
py::object with_root(const py::object& of, DeviceMesh slice) {
  py::object result = py::cast(std::move(slice));
  result.attr("_root") = py::hasattr(of, "_root") ? of.attr("_root") : of;
  return result;
}

py::object slice(const py::object& self, const std::variant<std::string, std::vector<std::string>>& names) {
  const auto& mesh = self.cast<const DeviceMesh&>();
  if (const auto* name = std::get_if<std::string>(&names)) return with_root(self, mesh[*name]);
  return with_root(self, mesh[std::get<std::vector<std::string>>(names)]);
}

void bind_parts(py::class_<DeviceMesh>& mesh) {
  mesh.def("__getitem__", &slice, "The sub-mesh along the named dimensions that contains this rank.")
      .def(
          "_flatten",
          [](const py::object& self, const std::string& name) {
            return with_root(self, self.cast<const DeviceMesh&>().flatten(name));
          },
          py::arg("mesh_dim_name") = "", "One dimension over all ranks, in row-major order.")
      .def(
          "view",
          [](const DeviceMesh& m, const std::vector<std::int64_t>& shape, std::vector<std::string> names) {
            return m.view(shape, std::move(names));
          },
          py::arg("mesh_shape"), py::arg("mesh_dim_names") = std::vector<std::string>{},
          "Another shape over the same ranks, in row-major order.")
      .def(
          "communicator",
          [](const DeviceMesh& m, const std::optional<Axis>& dim) {
            return dim ? m.communicator(axis_index(m, *dim)) : m.communicator();
          },
          py::arg("mesh_dim") = py::none(), ReleaseGil(),
          "The communicator of a dimension, or of all ranks of the mesh.");
}

}  // namespace

void bind_mesh(py::module_& module) {
  py::class_<DeviceMesh> mesh(
      module, "DeviceMesh", py::dynamic_attr(),
      "An n-dimensional array of ranks with named dimensions. `mesh`: world ranks, nested lists or an integer tensor.");
  mesh.def(py::init(&from_ranks), py::arg("device_type"), py::arg("mesh"), py::arg("mesh_dim_names") = py::none());
  mesh.def(py::init(&mesh_of), py::arg("mesh"),
           "A copy, or the equivalent of a mesh of torch.distributed.device_mesh.");
  accept_as<DeviceMesh>([](py::handle value) { return is_torch_mesh(value); });
  bind_values(mesh);
  bind_parts(mesh);
  module.def(
      "init_device_mesh",
      [](const std::string& device, const std::vector<std::int64_t>& shape,
         std::optional<std::vector<std::string>> names, std::optional<Communicator> world, const py::object& comm) {
        const auto mpi_handle = mpi_handle_of(comm);
        const py::gil_scoped_release no_gil;
        return init(device, shape, std::move(names), std::move(world), mpi_handle);
      },
      py::arg("device_type"), py::arg("mesh_shape"), py::kw_only(), py::arg("mesh_dim_names") = py::none(),
      py::arg("world") = py::none(), py::arg("comm") = py::none(),
      "A mesh over the first prod(mesh_shape) ranks, row by row. Called by every rank.\n\n"
      "`device_type` \"cuda\": processes communicate over NCCL, and connect at their first such mesh. A rank's GPU is\n"
      "the current device if the program has used CUDA, else its number among the ranks of its host; it becomes the\n"
      "current device. RuntimeError without a GPU, or if dtensor was built without NCCL.\n\n"
      "`world`: the communicator to take ranks of; by default all ranks that the program was started as.\n"
      "`comm`: a communicator of mpi4py to take ranks of, in place of `world`. Collective over it.");
}

}  // namespace dtensor::python
