# Installation. Users call find_package(dtensor CONFIG) and link dtensor::dtensor and, if NCCL was built, dtensor::cuda.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/dtensor)

set(_libraries dtensor)
if(TARGET dtensor_cuda)
  list(APPEND _libraries dtensor_cuda)
endif()
if(TARGET dtensor_torchscript)
  list(APPEND _libraries dtensor_torchscript)
endif()
if(TARGET dtensor_mpi)
  install(TARGETS dtensor_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_SKIP)  # loaded by dlopen, never linked
endif()
# An installed library finds libraries of its own folder and LibTorch, which finds CUDA's libraries by its own run path.
if(SKBUILD)
  set_target_properties(${_libraries} PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib")
else()
  set_target_properties(${_libraries} PROPERTIES INSTALL_RPATH "$ORIGIN;${LIBTORCH_ROOT}/lib")
endif()
if(TARGET dtensor_cuda)
  get_filename_component(_nccl_folder "${NCCL_LIBRARY}" DIRECTORY)
  set_property(TARGET dtensor_cuda APPEND PROPERTY INSTALL_RPATH "${_nccl_folder};${CUDAToolkit_LIBRARY_DIR}")
endif()
install(TARGETS ${_libraries} EXPORT dtensorTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT dtensorTargets NAMESPACE dtensor:: DESTINATION ${_package_folder})
foreach(tool verify_checkpoint verify_rules)
  if(TARGET ${tool})
    set_target_properties(${tool} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${LIBTORCH_ROOT}/lib")
    install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/dtensor DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

install(DIRECTORY ${CMAKE_SOURCE_DIR}/fortran DESTINATION ${CMAKE_INSTALL_DATADIR}/dtensor
  FILES_MATCHING PATTERN "*.f90" PATTERN "*.inc")

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/dtensorConfig.cmake.in ${CMAKE_BINARY_DIR}/dtensorConfig.cmake
  INSTALL_DESTINATION ${_package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/dtensorConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/dtensorConfig.cmake ${CMAKE_BINARY_DIR}/dtensorConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindLibTorch.cmake ${CMAKE_CURRENT_LIST_DIR}/LocateLibTorch.cmake DESTINATION ${_package_folder})
foreach(_name dtensor dtensor-c dtensor-fortran)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${_name}.pc.in ${CMAKE_BINARY_DIR}/${_name}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/${_name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/README.md ${CMAKE_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs ${CMAKE_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
