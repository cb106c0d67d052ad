# LibTorch as an imported target of our own: torch_cpu, c10 and the include folders. The wheel's TorchConfig.cmake needs a
# CUDA toolkit and links libraries that a CPU program does not want.
#   in:  LIBTORCH (folder that holds include/ and lib/; cache or environment), CMAKE_PREFIX_PATH, a Python torch
#   out: LibTorch::torch_cpu, LIBTORCH_ROOT, LIBTORCH_VERSION
set(_cache "$ENV{XDG_CACHE_HOME}")
if(NOT _cache)
  set(_cache "$ENV{HOME}/.cache")
endif()
file(GLOB _cached "${_cache}/dtensor/libtorch-*/lib/python3*/site-packages/torch")
find_path(LIBTORCH_INCLUDE_DIR ATen/core/Tensor.h
  HINTS "${LIBTORCH}" "$ENV{LIBTORCH}" ${_cached} PATH_SUFFIXES include)
get_filename_component(LIBTORCH_ROOT "${LIBTORCH_INCLUDE_DIR}" DIRECTORY)
find_library(LIBTORCH_CPU_LIBRARY torch_cpu HINTS "${LIBTORCH_ROOT}/lib" NO_DEFAULT_PATH)
find_library(LIBTORCH_C10_LIBRARY c10 HINTS "${LIBTORCH_ROOT}/lib" NO_DEFAULT_PATH)
if(EXISTS "${LIBTORCH_INCLUDE_DIR}/torch/headeronly/version.h")
  file(STRINGS "${LIBTORCH_INCLUDE_DIR}/torch/headeronly/version.h" _v REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX REPLACE "[^0-9;]" "" _v "${_v}")
  string(REPLACE ";" "." LIBTORCH_VERSION "${_v}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LIBTORCH_CPU_LIBRARY LIBTORCH_C10_LIBRARY LIBTORCH_INCLUDE_DIR
  VERSION_VAR LIBTORCH_VERSION)
if(LibTorch_FOUND AND NOT TARGET LibTorch::torch_cpu)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LIBTORCH_C10_LIBRARY}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${LIBTORCH_INCLUDE_DIR};${LIBTORCH_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_INCLUDE_DIRECTORIES "${LIBTORCH_INCLUDE_DIR};${LIBTORCH_INCLUDE_DIR}/torch/csrc/api/include")
  add_library(LibTorch::torch_cpu SHARED IMPORTED)
  set_target_properties(LibTorch::torch_cpu PROPERTIES IMPORTED_LOCATION "${LIBTORCH_CPU_LIBRARY}"
    INTERFACE_LINK_LIBRARIES LibTorch::c10)
endif()
