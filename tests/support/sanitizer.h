// Whether the build has a sanitizer, which keeps shadow memory and freed blocks in the process.
#pragma once

namespace dtensor::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace dtensor::test
