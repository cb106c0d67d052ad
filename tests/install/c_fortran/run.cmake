# Builds the programs of docs/guide/c_fortran.md against the installed tree in three ways, and runs them.
# cmake -DBUILD=... -DCONFIG=... -DWORK=... -DMPIEXEC=... -P run.cmake
get_filename_component(source ${CMAKE_CURRENT_LIST_DIR} ABSOLUTE)
set(prefix ${WORK}/prefix)

function(must folder)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${folder} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(status)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${status}): ${command}\n${output}")
  endif()
endfunction()

function(run folder)
  foreach(program model_c model_fortran)
    must(${folder} ${MPIEXEC} -n 2 ./${program})
  endforeach()
endfunction()

function(copy_sources folder)
  foreach(name model.c model.f90 Makefile pkg_config.mk)
    configure_file(${source}/${name} ${folder}/${name} COPYONLY)
  endforeach()
endfunction()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
must(${WORK} ${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --prefix ${prefix})

must(${WORK} ${CMAKE_COMMAND} -S ${source} -B ${WORK}/find_package -D CMAKE_PREFIX_PATH=${prefix})
must(${WORK} ${CMAKE_COMMAND} --build ${WORK}/find_package)
run(${WORK}/find_package)

foreach(flags "" -fdefault-integer-8)
  set(folder ${WORK}/make${flags})
  copy_sources(${folder})
  must(${folder} make PREFIX=${prefix} FFLAGS=${flags})
  run(${folder})
endforeach()

find_program(PKG_CONFIG pkg-config)
if(PKG_CONFIG)
  copy_sources(${WORK}/pkg_config)
  set(ENV{PKG_CONFIG_PATH} ${prefix}/lib/pkgconfig)
  must(${WORK}/pkg_config make -f pkg_config.mk)
  run(${WORK}/pkg_config)
endif()

# The page prints these files.
file(READ ${source}/../../../docs/guide/c_fortran.md page)
foreach(name model.c model.f90 CMakeLists.txt Makefile pkg_config.mk)
  file(READ ${source}/${name} text)
  string(FIND "${page}" "${text}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "docs/guide/c_fortran.md does not print tests/install/c_fortran/${name}")
  endif()
endforeach()
