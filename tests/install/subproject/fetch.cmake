include(FetchContent)
FetchContent_Declare(dtensor SOURCE_DIR ${CMAKE_SOURCE_DIR}/dtensor)  # or GIT_REPOSITORY and GIT_TAG
FetchContent_MakeAvailable(dtensor)
