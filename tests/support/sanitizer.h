// Whether a sanitizer watches: a process holds its shadow memory and blocks that were given back then.
#pragma once

namespace dtensor::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace dtensor::test
