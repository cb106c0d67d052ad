// Host of the precompiled header; see cmake/modules.cmake.
