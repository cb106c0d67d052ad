// Meshes over all ranks of an MPI communicator, or of this process.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <sstream>

#include "c/handles.h"
#include "c/status.h"
#include "dtensor/launch.h"
#include "internal/ranks/mpi_handle.h"
#include "internal/ranks/staged_communicator.h"

namespace dtensor::c {
namespace {

constexpr int kMaxDimensions = 16;

// The entries of "dp,tp".
std::vector<std::string> names_of(const char* text) {
  std::vector<std::string> names;
  std::istringstream rest(text == nullptr ? "" : text);
  for (std::string name; std::getline(rest, name, ',');) names.push_back(name);
  return names;
}

// A timeout in seconds; infinity: none.
std::chrono::milliseconds milliseconds_of(double seconds, const std::string& what) {
  TORCH_CHECK_VALUE(seconds > 0, "expected ", what, " of more than 0 seconds, got ", seconds);
  const double longest = 1e12;
  return seconds < longest ? std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1e3)))
                           : std::chrono::milliseconds::max();
}

std::atomic<double> chosen_timeout{0};  // 0: none was set

std::chrono::milliseconds timeout() {
  if (const double seconds = chosen_timeout; seconds > 0) return milliseconds_of(seconds, "a timeout");
  const char* text = std::getenv("DTENSOR_TIMEOUT");
  if (text == nullptr || *text == 0) return RunOptions{}.timeout;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  TORCH_CHECK_VALUE(*end == 0, "expected DTENSOR_TIMEOUT in seconds, got '", text, "'");
  return milliseconds_of(seconds, "DTENSOR_TIMEOUT");
}

std::string describe_mesh(const Communicator& ranks, int ndim, const std::int64_t* shape, const char* names) {
  TORCH_CHECK_VALUE(ndim >= 1 && ndim <= kMaxDimensions, "expected at least 1 mesh dimension and at most ",
                    kMaxDimensions, ", got ", ndim);
  const at::IntArrayRef sizes(&required(shape, "shape"), static_cast<std::size_t>(ndim));
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) product = size < 1 || product > ranks.size() / size ? 0 : product * size;
  TORCH_CHECK_VALUE(product == ranks.size(), "expected a shape of ", ranks.size(), " ranks, the size of the ",
                    "communicator, got ", sizes, "; use a communicator of the ranks of the mesh");
  return c10::str("shape ", sizes, " with names '", names == nullptr ? "" : names, "'");
}

c10::Device device_of(const char* text) {
  const c10::Device device(std::string(&required(text, "name of a device")));
  const bool known = device.type() != c10::kMeta && c10::impl::hasDeviceGuardImpl(device.type());
  const int count = known ? c10::impl::VirtualGuardImpl(device.type()).deviceCount() : 0;
  TORCH_CHECK_VALUE(device.index() < count && count > 0, "expected a device that LibTorch can use, got '", text,
                    "'; it finds ", count, " of this type");
  return device;
}

// The current device of this thread from here on.
void use_device(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (device.has_index()) guard.setDevice(device);
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

dtensor_status dtensor_set_timeout(double seconds) {
  return guarded(__func__, [&] {
    milliseconds_of(seconds, "a timeout");
    chosen_timeout = seconds;
  });
}

dtensor_status dtensor_mesh_from_mpi(int comm, int ndim, const int64_t* shape, const char* names, dtensor_mesh** mesh) {
  return guarded(__func__, [&] {
    const dtensor::Communicator ranks = dtensor::communicator_of_mpi_handle(comm, {.timeout = timeout()});
    agree(ranks, [&] {
      required(mesh, "pointer for the mesh");
      return describe_mesh(ranks, ndim, shape, names);
    });
    const at::IntArrayRef sizes(shape, static_cast<std::size_t>(ndim));
    *mesh = new_handle<dtensor_mesh>(Mesh{dtensor::init_device_mesh(ranks, at::kCPU, sizes, names_of(names))});
  });
}

dtensor_status dtensor_mesh_of_process(dtensor_mesh** mesh) {
  return guarded(__func__, [&] {
    auto& result = required(mesh, "pointer for the mesh");
    result = new_handle<dtensor_mesh>(Mesh{dtensor::init_device_mesh(process_communicator(), at::kCPU, {1})});
  });
}

dtensor_status dtensor_mesh_on_gpu(const dtensor_mesh* mesh, int gpu, dtensor_mesh** result) {
  return guarded_on_all(__func__, {mesh}, [&] {
    const auto& of = object(mesh).mesh;
    agree(of.communicator(), [&] {
      required(result, "pointer for the mesh");
      TORCH_CHECK_VALUE(gpu >= -1, "expected the number of a GPU, or -1, got ", gpu);
      return std::string();
    });
    const auto ranks = dtensor::nccl_communicator(of.communicator(), gpu, {.timeout = timeout()});
    *result = new_handle<dtensor_mesh>(Mesh{dtensor::init_device_mesh(ranks, at::kCUDA, of.shape(), of.names())});
  });
}

dtensor_status dtensor_mesh_on_device(const dtensor_mesh* mesh, const char* device, dtensor_mesh** result) {
  return guarded_on_all(__func__, {mesh}, [&] {
    const auto& of = object(mesh).mesh;
    agree(of.communicator(), [&] {
      required(result, "pointer for the mesh");
      return "a device of type " + c10::DeviceTypeName(device_of(device).type(), /*lower_case=*/true);
    });
    const c10::Device chosen = device_of(device);
    use_device(chosen);
    std::vector<std::int64_t> all(static_cast<std::size_t>(of.communicator().size()));
    std::iota(all.begin(), all.end(), 0);
    const auto ranks = dtensor::staged_communicator(of.communicator().subgroup(all), at::kCPU);
    *result = new_handle<dtensor_mesh>(Mesh{dtensor::init_device_mesh(ranks, chosen.type(), of.shape(), of.names())});
  });
}

dtensor_status dtensor_mesh_size(const dtensor_mesh* mesh, int* size) {
  return guarded(__func__, [&] { required(size, "pointer for the size") = object(mesh).mesh.world().size(); });
}

dtensor_status dtensor_mesh_rank(const dtensor_mesh* mesh, int* rank) {
  return guarded(__func__, [&] { required(rank, "pointer for the rank") = object(mesh).mesh.world().rank(); });
}

void dtensor_mesh_free(dtensor_mesh* mesh) {
  guarded(__func__, [&] { free_object(mesh, Kind::mesh); });
}
