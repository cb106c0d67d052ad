// The reduction kernels, compiled once for any processor and once for AVX2 (reduce.cpp includes this file in a
// namespace for each). They work tile by tile: the result of a tile is computed in the first-level cache from all
// inputs, so that each input is one stream, and then written to every target.
//
// Uses from the including file: Add, Multiply, Max, Min, Accumulator, kTile, kPrefetchBytes, kLongestRow, stream_tile,
// store_tile.

template <class T>
struct Value {
  static T widen(T x) { return x; }
  static T narrow(T x) { return x; }
};
template <>
struct Value<at::BFloat16> {
  static float widen(at::BFloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.x) << 16); }
  static at::BFloat16 narrow(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const auto kept = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded;
    return {static_cast<std::uint16_t>(kept), at::BFloat16::from_bits()};
  }
};

template <class T>
void widen_tile(const T* in, typename Accumulator<T>::type* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = Value<T>::widen(in[i]);
}
inline void widen_tile(const at::Half* in, float* out, std::int64_t n) { to_float(in, out, n); }

template <class T>
void narrow_tile(const typename Accumulator<T>::type* in, T* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = Value<T>::narrow(in[i]);
}
inline void narrow_tile(const float* in, at::Half* out, std::int64_t n) { from_float(in, out, n); }

// The first one or two inputs initialize the accumulators; the others are combined with them.
template <class Op, class T, class A>
[[gnu::always_inline]] inline int start(A* acc, const T* const* in, int n, std::int64_t at, std::int64_t size) {
  if constexpr (!std::is_same_v<T, at::Half>) {
    if (n > 1) {
      const T *a = in[0] + at, *b = in[1] + at;
      for (std::int64_t i = 0; i < size; ++i) acc[i] = Op::apply(Value<T>::widen(a[i]), Value<T>::widen(b[i]));
      return 2;
    }
  }
  widen_tile(in[0] + at, acc, size);
  return 1;
}

template <class Op, class T, class A>
[[gnu::always_inline]] inline void combine(A* acc, const T* in, std::int64_t size) {
  if constexpr (std::is_same_v<T, at::Half>) {
    A wide[kTile];
    widen_tile(in, wide, size);
    for (std::int64_t i = 0; i < size; ++i) acc[i] = Op::apply(acc[i], wide[i]);
  } else {
    for (std::int64_t i = 0; i < size; ++i) acc[i] = Op::apply(acc[i], Value<T>::widen(in[i]));
  }
}

template <class T>
void write_tile(T* to, const T* tile, std::int64_t size, bool stream) {
  if (size == kTile) {
    stream ? stream_tile(to, tile, kTile * sizeof(T)) : store_tile(to, tile, kTile * sizeof(T));
  } else {
    std::memcpy(to, tile, size * sizeof(T));
  }
}

// Prefetches the next lines of the inputs: the hardware does not predict the rows of a pitched matrix well.
template <class T>
void prefetch_rows(const T* const* in, int n, std::int64_t at) {
  for (int k = 0; k < n; ++k) {
    const auto* next = reinterpret_cast<const char*>(in[k] + at) + kPrefetchBytes;
    for (std::size_t line = 0; line < kTile * sizeof(T); line += 64) __builtin_prefetch(next + line);
  }
}

// `size` is a constant where this is inlined for full tiles, as the loops need to be fast.
template <class Op, class T>
[[gnu::always_inline]] inline void reduce_tile(T* const* out, int targets, const T* const* in, int n, std::int64_t at,
                                               std::int64_t size, bool average, bool stream) {
  using A = typename Accumulator<T>::type;
  alignas(64) A acc[kTile];
  alignas(64) T narrow[std::is_same_v<T, A> ? 1 : kTile];
  for (int k = start<Op>(acc, in, n, at, size); k < n; ++k) combine<Op>(acc, in[k] + at, size);
  if constexpr (!std::is_integral_v<A>) {
    const A divisor(static_cast<float>(n));
    for (std::int64_t i = 0; i < size && average; ++i) acc[i] = acc[i] / divisor;
  }
  const T* tile;
  if constexpr (std::is_same_v<T, A>) {
    tile = acc;
  } else {
    narrow_tile(acc, narrow, size);
    tile = narrow;
  }
  for (int k = 0; k < targets; ++k) write_tile(out[k] + at, tile, size, stream);
}

template <class Op, class T>
void reduce_typed(T* const* out, int targets, const T* const* in, int n, std::int64_t count, bool average,
                  bool stream) {
  const bool row = count * static_cast<std::int64_t>(sizeof(T)) <= kLongestRow;
  std::int64_t at = 0;
  for (; at + kTile <= count; at += kTile) {
    if (row) prefetch_rows(in, n, at);
    reduce_tile<Op>(out, targets, in, n, at, kTile, average, stream);
  }
  if (at < count) reduce_tile<Op>(out, targets, in, n, at, count - at, average, stream);
}

template <class T>
void reduce_as(void* const* out, int targets, const void* const* in, int n, std::int64_t count, ReduceOp op,
               bool stream) {
  auto* const* to = reinterpret_cast<T* const*>(out);
  const auto* from = reinterpret_cast<const T* const*>(in);
  if (op == ReduceOp::product) return reduce_typed<Multiply>(to, targets, from, n, count, false, stream);
  if constexpr (!c10::is_complex<T>::value) {
    if (op == ReduceOp::max) return reduce_typed<Max>(to, targets, from, n, count, false, stream);
    if (op == ReduceOp::min) return reduce_typed<Min>(to, targets, from, n, count, false, stream);
  }
  reduce_typed<Add>(to, targets, from, n, count, op == ReduceOp::avg, stream);
}

inline void reduce_any(void* const* out, int targets, const void* const* in, int n, std::int64_t count,
                       at::ScalarType dtype, ReduceOp op, bool stream) {
#define DTENSOR_REDUCE(T, name) \
  case at::ScalarType::name:    \
    return reduce_as<T>(out, targets, in, n, count, op, stream);
  switch (dtype) {
    DTENSOR_REDUCE(float, Float)
    DTENSOR_REDUCE(double, Double)
    DTENSOR_REDUCE(at::BFloat16, BFloat16)
    DTENSOR_REDUCE(at::Half, Half)
    DTENSOR_REDUCE(c10::complex<float>, ComplexFloat)
    DTENSOR_REDUCE(c10::complex<double>, ComplexDouble)
    DTENSOR_REDUCE(bool, Bool)
    DTENSOR_REDUCE(std::uint8_t, Byte)
    DTENSOR_REDUCE(std::int8_t, Char)
    DTENSOR_REDUCE(std::int16_t, Short)
    DTENSOR_REDUCE(std::int32_t, Int)
    DTENSOR_REDUCE(std::int64_t, Long)
    DTENSOR_REDUCE(std::uint16_t, UInt16)
    DTENSOR_REDUCE(std::uint32_t, UInt32)
    DTENSOR_REDUCE(std::uint64_t, UInt64)
    default:
      TORCH_CHECK(false, "reductions do not support ", c10::toString(dtype));
  }
#undef DTENSOR_REDUCE
}
