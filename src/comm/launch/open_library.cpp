// Libraries that are loaded on demand. The build defines the name of the CUDA library (DTENSOR_CUDA_LIBRARY).
#include "comm/launch/open_library.h"

#include <dlfcn.h>

#include <mutex>

#include "comm/launch/launchers.h"
#include "dtensor/launch.h"

namespace dtensor {
namespace {

// The directory of the library or program with this function, with a trailing slash.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string file = info.dli_fname;
  return file.substr(0, file.rfind('/') + 1);
}

}  // namespace

void* open_library(const std::string& name) {
  void* library = dlopen((own_folder() + name).c_str(), RTLD_NOW | RTLD_GLOBAL);
  return library != nullptr ? library : dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
}

// The library registers its entries when it is loaded. Thread ranks may ask at the same time.
std::string load_nccl() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (nccl_entries().main != nullptr) return "";
  if (open_library(DTENSOR_CUDA_LIBRARY) == nullptr) {
    return std::string("NCCL cannot be loaded: ") + dlerror() +
           "; build dtensor with a CUDA toolkit and NCCL (DTENSOR_WITH_NCCL=ON)";
  }
  if (nccl_entries().main != nullptr) return "";
  return "NCCL cannot be loaded: the program contains dtensor as a static library; link dtensor::cuda";
}

Communicator nccl_communicator(const Communicator& cpu, int device, RunOptions options) {
  const std::string why = load_nccl();
  TORCH_CHECK(why.empty(), "nccl_communicator: ", why);
  return nccl_entries().communicator(cpu, device, options);
}

}  // namespace dtensor
