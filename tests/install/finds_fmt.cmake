# fmt is LibTorch's where LibTorch ships it, otherwise an installed one; without either, the configuration fails.
# cmake -DSOURCE=... -DWORK=... -P finds_fmt.cmake
file(REMOVE_RECURSE "${WORK}")
file(WRITE "${WORK}/with/include/fmt/format.h" "")
file(WRITE "${WORK}/with/include/fmt/base.h" "#define FMT_VERSION 120102\n")
file(MAKE_DIRECTORY "${WORK}/without")
file(WRITE "${WORK}/installed/fmt-config.cmake" "add_library(fmt::fmt-header-only INTERFACE IMPORTED)\nset(fmt_VERSION 9.1.0)\n")
file(WRITE "${WORK}/source/CMakeLists.txt" "cmake_minimum_required(VERSION 3.25)\nproject(finds NONE)\n"
  "include(\"${SOURCE}/cmake/fmt.cmake\")\nget_target_property(links dtensor_fmt INTERFACE_LINK_LIBRARIES)\n"
  "message(STATUS \"fmt \${DTENSOR_FMT_WHY}; links \${links};\")\n")

function(expect_said libtorch option expected)
  file(REMOVE_RECURSE "${WORK}/build")
  execute_process(COMMAND ${CMAKE_COMMAND} -S "${WORK}/source" -B "${WORK}/build" -DLIBTORCH_ROOT=${WORK}/${libtorch}
    -D${option}
    OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(NOT said MATCHES "${expected}")
    message(FATAL_ERROR "with LibTorch ${libtorch} fmt and ${option}: expected ${expected}, got\n${said}")
  endif()
endfunction()

expect_said(with fmt_DIR=${WORK}/installed "fmt 12.1.2, LibTorch's headers; links links-NOTFOUND;")
expect_said(without fmt_DIR=${WORK}/installed "fmt 9.1.0, [^;]*installed; links fmt::fmt-header-only;")
expect_said(without CMAKE_DISABLE_FIND_PACKAGE_fmt=TRUE "find_package for module fmt called with REQUIRED")
