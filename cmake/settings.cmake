# Compilation settings of all files of this project: warnings, sanitizers, ccache, linker, number of parallel compilers. Those of
# a project that adds this one as a subdirectory stay as they are.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# -g1: stack traces with lines at half the compile time of -g.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-Og -g -D_GLIBCXX_ASSERTIONS")
add_compile_options(-Wall -Wextra -Wpedantic)  # in the precompiled header too, or gcc rejects it

set(DTENSOR_SANITIZE "" CACHE STRING "Sanitizers of all targets, as in -fsanitize=")
if(DTENSOR_SANITIZE MATCHES "undefined")  # at -O2 its checks double the compile time
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
endif()
if(DTENSOR_SANITIZE)
  add_compile_options(-fsanitize=${DTENSOR_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DTENSOR_SANITIZE})
endif()

# at::parallel_for is serial in files that are compiled without -fopenmp. The library then shares LibTorch's libgomp, whose
# soname is that of the compiler's. Clang would bring a second OpenMP runtime, so loops stay serial there.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
  set(DTENSOR_OPENMP -fopenmp)
endif()

# Programs use -fPIC too, not -fPIE, so that all targets can share the precompiled header.
add_compile_options(-fPIC)

# All clones share one ccache: paths are hashed relative to the source folder, and objects contain no absolute paths.
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
find_program(DTENSOR_CCACHE ccache)
mark_as_advanced(DTENSOR_CCACHE)
if(DTENSOR_CCACHE AND (PROJECT_IS_TOP_LEVEL OR NOT CMAKE_CXX_COMPILER_LAUNCHER))
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_PCH_EXTSUM=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${DTENSOR_CCACHE})
endif()
find_program(DTENSOR_MOLD mold)
mark_as_advanced(DTENSOR_MOLD)
if(DTENSOR_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# Compiling a file with ATen headers takes about 1.3 GB, so the number of parallel compilers is limited by memory.
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
cmake_host_system_information(RESULT memory_mb QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR DTENSOR_COMPILE_JOBS "${memory_mb} / 1300")
if(DTENSOR_COMPILE_JOBS GREATER cores)
  set(DTENSOR_COMPILE_JOBS ${cores})
elseif(DTENSOR_COMPILE_JOBS LESS 1)
  set(DTENSOR_COMPILE_JOBS 1)
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS dtensor_compile=${DTENSOR_COMPILE_JOBS})
set(CMAKE_JOB_POOL_COMPILE dtensor_compile)
set(CMAKE_JOB_POOL_PRECOMPILE_HEADER dtensor_compile)
