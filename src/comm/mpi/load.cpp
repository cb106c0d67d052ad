// Loads libdtensor_mpi.so; the build defines its name (DTENSOR_MPI_LIBRARY).
#include <dlfcn.h>

#include <c10/util/Exception.h>

#include "comm/launch/open_library.h"
#include "comm/mpi/api.h"

namespace dtensor::mpi {
namespace {

const Api* loaded = nullptr;

}  // namespace

std::string load_api() {
  if (loaded != nullptr) return "";
  void* library = open_library(DTENSOR_MPI_LIBRARY);
  if (library == nullptr) return std::string("MPI cannot be loaded: ") + dlerror();
  loaded = static_cast<const Api*>(dlsym(library, kApiSymbol));
  return loaded != nullptr ? "" : c10::str(DTENSOR_MPI_LIBRARY, " does not export the table of MPI functions");
}

const Api& api() { return *loaded; }

}  // namespace dtensor::mpi
