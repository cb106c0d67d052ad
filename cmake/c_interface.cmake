# C and Fortran, where compilers are found, for programs that use the C interface. The library itself needs C++ only. A
# project that adds this one as a subdirectory enables the languages that it uses itself.
if(PROJECT_IS_TOP_LEVEL)
  include(CheckLanguage)
  foreach(language C Fortran)
    check_language(${language})
    if(CMAKE_${language}_COMPILER)
      enable_language(${language})
    endif()
  endforeach()
endif()
