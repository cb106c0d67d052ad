// Stores that bypass the cache.
#pragma once

#include <cstddef>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace dtensor {

constexpr std::size_t kCacheLineBytes = 64;

#ifdef __SSE2__

// Copies 64 bytes; `to` is aligned to 16 bytes.
inline void stream_cache_line(void* to, const void* from) {
  const auto* in = static_cast<const __m128i*>(from);
  auto* out = static_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                d = _mm_loadu_si128(in + 3);
  _mm_stream_si128(out, a);
  _mm_stream_si128(out + 1, b);
  _mm_stream_si128(out + 2, c);
  _mm_stream_si128(out + 3, d);
}
// Required before another thread reads the streamed memory.
inline void stream_fence() { _mm_sfence(); }

#else

inline void stream_cache_line(void* to, const void* from) { std::memcpy(to, from, kCacheLineBytes); }
inline void stream_fence() {}

#endif

// Prefetches memory that is read in runs with jumps that the hardware does not predict. Called when byte `at` of a run
// of `bytes` is read, with `next` as the following run. Fetches what is read kPrefetchDistance bytes later.
constexpr std::size_t kPrefetchDistance = 4096;
constexpr std::size_t kHardwarePrefetchBytes = std::size_t{256}
                                               << 10;  // the hardware prefetches runs of at least this size

inline void prefetch_ahead(const void* run, const void* next, std::size_t at, std::size_t bytes) {
  const std::size_t ahead = at + kPrefetchDistance;
  __builtin_prefetch(ahead < bytes ? static_cast<const char*>(run) + ahead
                                   : static_cast<const char*>(next) + (ahead - bytes));
}

}  // namespace dtensor
