// Libraries that are loaded on demand: MPI's functions, and the kernels and NCCL of GPUs.
#pragma once

#include <string>

namespace dtensor {

// dlopen's handle of the library beside the library or program with this function, else by the usual search. Null if
// there is none; dlerror() says why. Its symbols are global, since plugins of MPI need them.
void* open_library(const std::string& name);

}  // namespace dtensor
