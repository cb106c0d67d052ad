// Host of the precompiled header; see cmake/rooms.cmake.
