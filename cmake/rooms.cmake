# One object target per room of src/. A room is a folder; its sources are found by name.
add_compile_options(-Wall -Wextra -Wpedantic)  # in the precompiled header too, or gcc rejects it
add_library(dtensor_pch OBJECT ${CMAKE_SOURCE_DIR}/cmake/pch.cpp)
target_link_libraries(dtensor_pch PUBLIC LibTorch::torch_cpu)
target_precompile_headers(dtensor_pch PRIVATE <ATen/ATen.h> <ATen/core/dispatch/Dispatcher.h> <torch/library.h>
  <algorithm> <functional> <map> <memory> <mutex> <numeric> <optional> <string> <unordered_map> <vector>)
target_compile_options(dtensor_pch PRIVATE -fPIC)

function(dtensor_room name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/(mpi|nccl|no_[a-z]+)[^/]*\\.cpp$")
  if(NOT sources)
    return()
  endif()
  add_library(dtensor_${name} OBJECT ${sources} ${ARGN})
  target_include_directories(dtensor_${name} PUBLIC ${CMAKE_SOURCE_DIR}/include PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(dtensor_${name} PUBLIC LibTorch::torch_cpu PRIVATE nlohmann_json::nlohmann_json)
  target_precompile_headers(dtensor_${name} REUSE_FROM dtensor_pch)
  set_property(GLOBAL APPEND PROPERTY DTENSOR_ROOMS dtensor_${name})
endfunction()
