# Defines imported targets for LibTorch: torch_cpu, c10 and the include folders. The wheel's TorchConfig.cmake requires
# a CUDA toolkit and links libraries that a CPU program does not need. This file is installed too, for
# dtensorConfig.cmake.
#   in:  the variables of LocateLibTorch.cmake
#   out: LibTorch::torch_cpu, LibTorch::c10, LIBTORCH_ROOT, LIBTORCH_VERSION; LibTorch::c10_cuda and LibTorch::torch_cuda
#        if their libraries exist
include("${CMAKE_CURRENT_LIST_DIR}/LocateLibTorch.cmake")
dtensor_locate_libtorch(LIBTORCH_ROOT)
if(LIBTORCH_ROOT)
  dtensor_libtorch_version("${LIBTORCH_ROOT}" LIBTORCH_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LIBTORCH_ROOT VERSION_VAR LIBTORCH_VERSION
  REASON_FAILURE_MESSAGE "Run `make setup` in the dtensor sources, or set LIBTORCH to the folder that holds include/ and lib/.")

# Defines an imported library of LibTorch's lib/ if the file exists.
function(_dtensor_libtorch_library name)
  set(file "${LIBTORCH_ROOT}/lib/lib${name}.so")
  if(TARGET LibTorch::${name} OR NOT EXISTS "${file}")
    return()
  endif()
  add_library(LibTorch::${name} SHARED IMPORTED)
  set_target_properties(LibTorch::${name} PROPERTIES IMPORTED_LOCATION "${file}" INTERFACE_LINK_LIBRARIES "${ARGN}")
endfunction()

if(LibTorch_FOUND)
  set(_libtorch_include "${LIBTORCH_ROOT}/include" "${LIBTORCH_ROOT}/include/torch/csrc/api/include")
  _dtensor_libtorch_library(c10)
  set_target_properties(LibTorch::c10 PROPERTIES INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_INCLUDE_DIRECTORIES "${_libtorch_include}" INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_libtorch_include}")
  _dtensor_libtorch_library(torch_cpu LibTorch::c10)
  _dtensor_libtorch_library(c10_cuda LibTorch::c10)
  _dtensor_libtorch_library(torch_cuda LibTorch::c10_cuda LibTorch::torch_cpu)
endif()
