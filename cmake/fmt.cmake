# fmt, for .cpp files only: they define FMT_HEADER_ONLY, so no library is linked. LibTorch's include folder precedes the
# system's in every command line. So the headers that a LibTorch ships (fmt 12 in 2.15) shadow an installed fmt, and a
# link with the library of another version would fail. An installed fmt counts where LibTorch ships none.
#   in:  LIBTORCH_ROOT
#   out: dtensor_fmt, to be linked by targets that include fmt; DTENSOR_FMT_WHY, its version and origin
add_library(dtensor_fmt INTERFACE)
if(EXISTS "${LIBTORCH_ROOT}/include/fmt/format.h")
  file(STRINGS "${LIBTORCH_ROOT}/include/fmt/base.h" _fmt_version REGEX "^#define FMT_VERSION ")
  string(REGEX REPLACE "[^0-9]*([0-9]+)([0-9][0-9])([0-9][0-9])$" "\\1.\\2.\\3" _fmt_version "${_fmt_version}")
  string(REGEX REPLACE "\\.0" "." _fmt_version "${_fmt_version}")
  set(DTENSOR_FMT_WHY "${_fmt_version}, LibTorch's headers")
else()
  find_package(fmt REQUIRED)
  target_link_libraries(dtensor_fmt INTERFACE fmt::fmt-header-only)
  set(DTENSOR_FMT_WHY "${fmt_VERSION}, ${fmt_DIR}")
endif()
