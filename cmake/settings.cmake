# How every file of the project is compiled: warnings, sanitizers, ccache, linker, how many compilers at once.
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

set(DTENSOR_SANITIZE "" CACHE STRING "Sanitizers of the whole build, as in -fsanitize=")
if(DTENSOR_SANITIZE MATCHES "undefined")  # at -O2 its checks double the time of a compilation
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
endif()
if(DTENSOR_SANITIZE)
  add_compile_options(-fsanitize=${DTENSOR_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DTENSOR_SANITIZE})
endif()

# Programs too, not -fPIE: with one code model the precompiled header serves every target.
add_compile_options(-fPIC)

# One cache for all clones: paths below the source folder are hashed relative to it, and none stays in the objects.
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}=.)
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_PCH_EXTSUM=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# A compiler on an ATen header takes about 1.3 GB: never more of them than fit in memory.
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
cmake_host_system_information(RESULT memory_mb QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR DTENSOR_COMPILE_JOBS "${memory_mb} / 1300")
if(DTENSOR_COMPILE_JOBS GREATER cores)
  set(DTENSOR_COMPILE_JOBS ${cores})
elseif(DTENSOR_COMPILE_JOBS LESS 1)
  set(DTENSOR_COMPILE_JOBS 1)
endif()
set_property(GLOBAL PROPERTY JOB_POOLS compile=${DTENSOR_COMPILE_JOBS})
set(CMAKE_JOB_POOL_COMPILE compile)
set(CMAKE_JOB_POOL_PRECOMPILE_HEADER compile)
