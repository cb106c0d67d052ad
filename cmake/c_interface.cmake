# C and Fortran, where compilers are found, for programs that use the C interface. The library itself needs C++ only.
include(CheckLanguage)
foreach(language C Fortran)
  check_language(${language})
  if(CMAKE_${language}_COMPILER)
    enable_language(${language})
  endif()
endforeach()

# Links a program in C or Fortran with the library alone, as an installed program is. LibTorch's folder must not be on
# the run path of a Fortran program: it has an older libgfortran.so.5 than the compiler.
function(dtensor_link_c_interface target)
  add_dependencies(${target} dtensor)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(${target} PRIVATE $<TARGET_LINKER_FILE:dtensor>)
  target_link_options(${target} PRIVATE LINKER:-rpath-link,${LIBTORCH_ROOT}/lib)
  set_target_properties(${target} PROPERTIES BUILD_RPATH $<TARGET_FILE_DIR:dtensor>)
endfunction()
