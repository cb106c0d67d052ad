// Uses the F16C instructions if the processor has them (tested at run time), else c10's conversion.
#include "comm/memory/reduce/half_conversion.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#pragma GCC optimize("O3")

namespace dtensor {
namespace {

#if defined(__x86_64__)
bool has_f16c() {
  static const bool yes = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return yes;
}

__attribute__((target("avx,f16c"))) std::int64_t to_float_f16c(const at::Half* in, float* out, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
  }
  return i;
}

__attribute__((target("avx,f16c"))) std::int64_t from_float_f16c(const float* in, at::Half* out, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
  }
  return i;
}
#else
bool has_f16c() { return false; }
std::int64_t to_float_f16c(const at::Half*, float*, std::int64_t) { return 0; }
std::int64_t from_float_f16c(const float*, at::Half*, std::int64_t) { return 0; }
#endif

}  // namespace

void to_float(const at::Half* in, float* out, std::int64_t n) {
  for (std::int64_t i = has_f16c() ? to_float_f16c(in, out, n) : 0; i < n; ++i) out[i] = static_cast<float>(in[i]);
}

void from_float(const float* in, at::Half* out, std::int64_t n) {
  for (std::int64_t i = has_f16c() ? from_float_f16c(in, out, n) : 0; i < n; ++i) out[i] = static_cast<at::Half>(in[i]);
}

}  // namespace dtensor
