# Tests under mpirun: allowed as root, with more ranks than cores, and without busy waiting.
set(DTENSOR_MPI_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none)
if(DTENSOR_SANITIZE MATCHES "address")
  list(APPEND DTENSOR_MPI_ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)  # Open MPI does not free all its memory
endif()

# dtensor_add_mpi_test(name ranks program arguments...)
function(dtensor_add_mpi_test name ranks program)
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${program} ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${test_timeout} PROCESSORS ${ranks}
    ENVIRONMENT "${DTENSOR_MPI_ENVIRONMENT};${test_environment}")
endfunction()
