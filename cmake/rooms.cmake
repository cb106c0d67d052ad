# One object target per room of src/. A room is a folder; its sources are found by name. Backends are chosen by file, never
# by #ifdef: src/comm/mpi/ where MPI is built, src/comm/no_mpi.cpp where it is not; src/comm/nccl/, src/random/cuda/ and src/moe/cuda/
# belong to the library dtensor_cuda, so that programs for the CPU never load CUDA's libraries.
add_library(dtensor_pch OBJECT ${CMAKE_SOURCE_DIR}/cmake/pch.cpp)
target_link_libraries(dtensor_pch PUBLIC LibTorch::torch_cpu)
target_precompile_headers(dtensor_pch PRIVATE <ATen/ATen.h> <ATen/core/dispatch/Dispatcher.h> <torch/library.h>
  <algorithm> <functional> <map> <memory> <mutex> <numeric> <optional> <string> <unordered_map> <vector>)

# ccache hashes this checksum instead of the precompiled header, whose bytes differ from clone to clone: it names all that
# goes into it (the compiler's flags are hashed with each command).
file(WRITE ${CMAKE_BINARY_DIR}/CMakeFiles/dtensor_pch.dir/cmake_pch.hxx.gch.sum
  "${LIBTORCH_ROOT} ${LIBTORCH_VERSION} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_FLAGS} ${CMAKE_BUILD_TYPE}")

# What compiling any file of src/ needs.
function(dtensor_compile_like_room target)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/include PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${target} PUBLIC LibTorch::torch_cpu PRIVATE nlohmann_json::nlohmann_json)
  target_precompile_headers(${target} REUSE_FROM dtensor_pch)
endfunction()

function(dtensor_room name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/(comm/mpi/library|comm/nccl|random/cuda|moe/cuda)/")
  if(DTENSOR_MPI)
    list(FILTER sources EXCLUDE REGEX "/comm/no_mpi\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/comm/mpi/")
  endif()
  if(NOT sources)
    return()
  endif()
  add_library(dtensor_${name} OBJECT ${sources})
  dtensor_compile_like_room(dtensor_${name})
  if(name STREQUAL "comm" AND DTENSOR_MPI)
    # Its types only: libdtensor_mpi.so, which is loaded where it is asked for, is linked with it.
    target_include_directories(dtensor_${name} SYSTEM PRIVATE ${MPI_CXX_INCLUDE_DIRS})
    target_compile_definitions(dtensor_${name} PRIVATE OMPI_SKIP_MPICXX
      DTENSOR_MPI_LIBRARY="$<TARGET_SONAME_FILE_NAME:dtensor_mpi>")
    target_link_libraries(dtensor_${name} PRIVATE ${CMAKE_DL_LIBS})
  endif()
  set_property(GLOBAL APPEND PROPERTY DTENSOR_ROOMS dtensor_${name})
endfunction()
