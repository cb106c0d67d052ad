# Unpacks the recorded data of tests and tools, tests/data/NAME.tar.xz, into DTENSOR_TEST_DATA. tools/pack_test_data.py
# creates the archives.
set(DTENSOR_TEST_DATA ${PROJECT_BINARY_DIR}/tests/data)
file(GLOB _archives CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/data/*.tar.xz)
foreach(_archive ${_archives})
  get_filename_component(_name ${_archive} NAME)
  set(_stamp ${PROJECT_BINARY_DIR}/CMakeFiles/${_name}.unpacked)
  if(${_archive} IS_NEWER_THAN ${_stamp})
    file(ARCHIVE_EXTRACT INPUT ${_archive} DESTINATION ${DTENSOR_TEST_DATA})
    file(TOUCH ${_stamp})
  endif()
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_archives})
