// Loads libdtensor_mpi.so; the build defines its name (DTENSOR_MPI_LIBRARY).
#include <dlfcn.h>

#include "comm/mpi/api.h"

namespace dtensor::mpi {
namespace {

const Api* loaded = nullptr;

// The directory of the library or program with this function, with a trailing slash.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string file = info.dli_fname;
  return file.substr(0, file.rfind('/') + 1);
}

// RTLD_GLOBAL, since MPI's plugins need its symbols.
void* open_library(const std::string& path) { return dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL); }

}  // namespace

std::string load_api() {
  if (loaded != nullptr) return "";
  void* library = open_library(own_folder() + DTENSOR_MPI_LIBRARY);
  if (library == nullptr) library = open_library(DTENSOR_MPI_LIBRARY);
  if (library == nullptr) return std::string("MPI cannot be loaded: ") + dlerror();
  loaded = static_cast<const Api*>(dlsym(library, kApiSymbol));
  return loaded != nullptr ? "" : c10::str(DTENSOR_MPI_LIBRARY, " does not export the table of MPI functions");
}

const Api& api() { return *loaded; }

}  // namespace dtensor::mpi
