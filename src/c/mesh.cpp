// Meshes over all ranks of an MPI communicator, or of this process.
#include <c10/util/Exception.h>

#include <sstream>

#include "c/handles.h"
#include "c/status.h"
#include "internal/ranks/mpi_handle.h"

namespace dtensor::c {
namespace {

// The entries of "dp,tp".
std::vector<std::string> names_of(const char* text) {
  std::vector<std::string> names;
  std::istringstream rest(text == nullptr ? "" : text);
  for (std::string name; std::getline(rest, name, ',');) names.push_back(name);
  return names;
}

std::string describe_mesh(const Communicator& ranks, int ndim, const std::int64_t* shape, const char* names) {
  TORCH_CHECK_VALUE(ndim >= 1, "expected at least 1 mesh dimension, got ", ndim);
  const at::IntArrayRef sizes(&required(shape, "shape"), static_cast<std::size_t>(ndim));
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) product *= size;
  TORCH_CHECK_VALUE(product == ranks.size(), "expected a shape of ", ranks.size(), " ranks, the size of the ",
                    "communicator, got ", sizes, "; use a communicator of the ranks of the mesh");
  return c10::str("shape ", sizes, " with names '", names == nullptr ? "" : names, "'");
}

// A communicator of this rank only. It needs no other thread, so it may be used after run_local has returned.
Communicator process_communicator() {
  Communicator result;
  run_local(1, [&](const Communicator& ranks) { result = ranks; }, {.set_threads = false});
  return result;
}

}  // namespace
}  // namespace dtensor::c

using namespace dtensor::c;

dtensor_status dtensor_mesh_from_mpi(int comm, int ndim, const int64_t* shape, const char* names, dtensor_mesh** mesh) {
  return guarded(__func__, [&] {
    const dtensor::Communicator ranks = dtensor::communicator_of_mpi_handle(comm);
    agree(ranks, [&] {
      required(mesh, "pointer for the mesh");
      return describe_mesh(ranks, ndim, shape, names);
    });
    const at::IntArrayRef sizes(shape, static_cast<std::size_t>(ndim));
    *mesh = new dtensor_mesh{dtensor::init_device_mesh(ranks, at::kCPU, sizes, names_of(names))};
  });
}

dtensor_status dtensor_mesh_of_process(dtensor_mesh** mesh) {
  return guarded(__func__, [&] {
    auto& result = required(mesh, "pointer for the mesh");
    result = new dtensor_mesh{dtensor::init_device_mesh(process_communicator(), at::kCPU, {1})};
  });
}

dtensor_status dtensor_mesh_size(const dtensor_mesh* mesh, int* size) {
  return guarded(__func__,
                 [&] { required(size, "pointer for the size") = required(mesh, "mesh").mesh.world().size(); });
}

dtensor_status dtensor_mesh_rank(const dtensor_mesh* mesh, int* rank) {
  return guarded(__func__,
                 [&] { required(rank, "pointer for the rank") = required(mesh, "mesh").mesh.world().rank(); });
}

void dtensor_mesh_free(dtensor_mesh* mesh) { delete mesh; }
