// Libraries that are loaded on demand. The build defines the name of the CUDA library (DTENSOR_CUDA_LIBRARY).
#include "comm/launch/open_library.h"

#include <dlfcn.h>

#include <mutex>

#include "comm/launch/launchers.h"
#include "dtensor/launch.h"

namespace dtensor {
namespace {

// The file of the library or program with this function.
std::string own_file() {
  Dl_info info{};
  return dladdr(reinterpret_cast<void*>(&own_file), &info) == 0 || info.dli_fname == nullptr ? "" : info.dli_fname;
}

// Its directory, with a trailing slash.
std::string own_folder() {
  const std::string file = own_file();
  return file.substr(0, file.rfind('/') + 1);
}

// The CUDA library loads libdtensor.so, whose operators a program with the static library has defined already.
bool is_in_shared_library() { return own_file().substr(own_folder().size()).rfind("libdtensor.so", 0) == 0; }

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
  if (!is_in_shared_library()) {
    return "NCCL cannot be loaded: the program contains dtensor as a static library; link dtensor::cuda";
  }
  if (open_library(DTENSOR_CUDA_LIBRARY) != nullptr) return "";
  return std::string("NCCL cannot be loaded: ") + dlerror() +
         "; build dtensor with a CUDA toolkit and NCCL (DTENSOR_WITH_NCCL=ON)";
}

Communicator nccl_communicator(const Communicator& cpu, int device, RunOptions options) {
  const std::string why = load_nccl();
  TORCH_CHECK(why.empty(), "nccl_communicator: ", why);
  return nccl_entries().communicator(cpu, device, options);
}

}  // namespace dtensor
