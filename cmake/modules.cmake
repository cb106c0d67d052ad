# One object library per module of src/. A module is a folder with all its sources, without sub-folders that are
# declared as modules themselves. Backends are selected by file, not by #ifdef: src/comm/mpi/ with MPI,
# src/comm/launch/no_mpi.cpp without it; src/halo/partition/metis.cpp with METIS, no_metis.cpp without it.
# src/comm/nccl/ and the folders src/*/cuda/ belong to the library dtensor_cuda, so that CPU programs never load
# CUDA.

# Creates `name`, the target whose precompiled header has the given headers. ccache hashes the checksum written here instead
# of the precompiled header, whose bytes differ between clones. It contains all inputs of the header; ccache hashes the
# compiler's flags with each command.
function(dtensor_precompiled_header name)
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
  target_link_libraries(${name} PUBLIC LibTorch::torch_cpu)
  target_precompile_headers(${name} PRIVATE ${ARGN})
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${name}.dir/cmake_pch.hxx.gch.sum
    "${LIBTORCH_ROOT} ${LIBTORCH_VERSION} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_FLAGS} ${CMAKE_BUILD_TYPE} ${ARGN}")
endfunction()

set(DTENSOR_PRECOMPILED <ATen/ATen.h> <ATen/core/dispatch/Dispatcher.h> <torch/library.h>
  <algorithm> <functional> <map> <memory> <mutex> <numeric> <optional> <string> <unordered_map> <vector>)
dtensor_precompiled_header(dtensor_pch ${DTENSOR_PRECOMPILED})

# Creates the include folder of `target`: links to `modules`, and to `headers` of include/dtensor or src/internal. The
# compiler finds no other header, which keeps the dependencies between modules acyclic.
function(dtensor_include_modules target modules headers)
  set(folder ${PROJECT_BINARY_DIR}/include/${target})
  file(REMOVE_RECURSE ${folder})
  list(SORT modules)  # a module before its sub-modules, which its link contains
  foreach(module ${modules})
    if(NOT EXISTS ${folder}/${module})
      get_filename_component(parent ${folder}/${module} DIRECTORY)
      file(MAKE_DIRECTORY ${parent})
      file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${module} ${folder}/${module} SYMBOLIC)
    endif()
  endforeach()
  foreach(header ${headers})
    set(found include/dtensor/${header})
    set(link dtensor/${header})
    if(header MATCHES "^internal/")
      set(found src/${header})
      set(link ${header})
    endif()
    get_filename_component(parent ${folder}/${link} DIRECTORY)
    file(MAKE_DIRECTORY ${parent})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${found} ${folder}/${link} SYMBOLIC)
  endforeach()
  # Diagnostics and debuggers show the path in src/, not the link.
  target_include_directories(${target} PRIVATE ${folder})
  target_compile_options(${target} PRIVATE -ffile-prefix-map=${folder}=./src)
endfunction()

# Sets the dependencies that every file of src/ needs.
function(dtensor_compile_like_module target)
  target_link_libraries(${target} PUBLIC LibTorch::torch_cpu PRIVATE nlohmann_json::nlohmann_json dtensor_fmt)
  target_link_options(${target} PUBLIC ${DTENSOR_OPENMP})
  target_precompile_headers(${target} REUSE_FROM dtensor_pch)
endfunction()

# Unity build: replaces the files of `folder` in the list `variable` by files that include DTENSOR_BATCH of them each.
# They include "module/file.cpp", a path that is equal in all clones, unlike the paths of CMake's own unity builds, so
# that ccache hits. Each translation unit costs over a second for templates of LibTorch's headers, which a precompiled
# header cannot contain. Files of a module share a translation unit, so helpers in unnamed namespaces need distinct
# names.
set(DTENSOR_BATCH 3 CACHE STRING "Files of src/ per translation unit; 1 is fastest for rebuilds after a change of one file")
function(dtensor_batch variable name folder)
  set(files ${${variable}})
  list(SORT files)
  set(batches)
  set(count 0)
  while(files)
    list(SUBLIST files 0 ${DTENSOR_BATCH} batch)
    list(REMOVE_ITEM files ${batch})
    list(TRANSFORM batch REPLACE "^${folder}/(.*)$" "#include \"\\1\"\n")
    string(JOIN "" text ${batch})
    math(EXPR count "${count} + 1")
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/batches/${name}_${count}.cpp CONTENT "${text}" @ONLY)
    list(APPEND batches ${PROJECT_BINARY_DIR}/batches/${name}_${count}.cpp)
  endwhile()
  set(${variable} ${batches} PARENT_SCOPE)
endfunction()

# dtensor_module(folder [DEPENDS modules...] [PUBLIC headers...]). Without PUBLIC: all public headers, and src/internal.
# The module contains sub-folders, except those that were declared as modules before it.
function(dtensor_module name)
  cmake_parse_arguments(PARSE_ARGV 1 module "" "" "DEPENDS;PUBLIC")
  string(REPLACE / _ target dtensor_${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  get_property(modules GLOBAL PROPERTY DTENSOR_MODULES)
  foreach(inner ${modules})
    list(FILTER sources EXCLUDE REGEX "/src/${inner}/")
  endforeach()
  list(FILTER sources EXCLUDE REGEX "/(comm/mpi/library|comm/nccl|[a-z_]+/cuda)/")
  if(DTENSOR_MPI)
    list(FILTER sources EXCLUDE REGEX "/comm/launch/no_mpi\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/comm/mpi/")
  endif()
  if(DTENSOR_METIS)
    list(FILTER sources EXCLUDE REGEX "/halo/partition/no_metis\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/halo/partition/metis\\.cpp$")
  endif()
  if(DTENSOR_BATCH GREATER 1)
    dtensor_batch(sources ${target} ${PROJECT_SOURCE_DIR}/src)
  endif()
  add_library(${target} OBJECT ${sources})
  if(DTENSOR_BATCH GREATER 1)  # gcc treats types in unnamed namespaces of included files as those of a header
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # false positive of gcc 12 for the inline storage of c10::SmallVector
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
  endif()
  dtensor_compile_like_module(${target})
  if(NOT module_PUBLIC)
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/include)
    list(APPEND module_DEPENDS internal)
  endif()
  dtensor_include_modules(${target} "${name};${module_DEPENDS}" "${module_PUBLIC}")
  if(name STREQUAL "comm" AND DTENSOR_MPI)
    # Only MPI's headers: libdtensor_mpi.so links MPI and is loaded at run time.
    target_include_directories(${target} SYSTEM PRIVATE ${MPI_CXX_INCLUDE_DIRS})
    target_compile_definitions(${target} PRIVATE OMPI_SKIP_MPICXX
      DTENSOR_MPI_LIBRARY="$<TARGET_SONAME_FILE_NAME:dtensor_mpi>")
  endif()
  if(name STREQUAL "comm")
    target_compile_definitions(${target} PRIVATE
      DTENSOR_CUDA_LIBRARY="libdtensor_cuda.so.${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
    target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
  endif()
  if(name STREQUAL "halo" AND DTENSOR_METIS)
    target_link_libraries(${target} PRIVATE METIS::metis)
  endif()
  set_property(GLOBAL APPEND PROPERTY DTENSOR_MODULES ${name})
  set_property(GLOBAL APPEND PROPERTY DTENSOR_MODULE_TARGETS ${target})
endfunction()
