# A build folder keeps the LIBTORCH of the environment in which it was configured after the variable is unset; a new
# value replaces it.
# cmake -DSOURCE=... -DWORK=... -DLIBTORCH_ROOT=... -P remembers_libtorch.cmake
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}/source")
foreach(name one other)
  file(CREATE_LINK "${LIBTORCH_ROOT}" "${WORK}/${name}" SYMBOLIC)
endforeach()
file(WRITE "${WORK}/source/CMakeLists.txt" "cmake_minimum_required(VERSION 3.22)\nproject(remembers NONE)\n"
  "include(\"${SOURCE}/cmake/LocateLibTorch.cmake\")\ndtensor_locate_libtorch(root)\nmessage(STATUS \"found \${root};\")\n")

function(expect_found name environment)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env ${environment} ${CMAKE_COMMAND} -S "${WORK}/source" -B "${WORK}/build"
    OUTPUT_VARIABLE said ERROR_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
  if(NOT said MATCHES "found ${WORK}/${name};")
    message(FATAL_ERROR "with ${environment}, ${WORK}/${name} was not found:\n${said}")
  endif()
endfunction()

expect_found(one "LIBTORCH=${WORK}/one")
expect_found(one "--unset=LIBTORCH")
expect_found(other "LIBTORCH=${WORK}/other")
expect_found(other "--unset=LIBTORCH")
