// Results as rules describe them where LibTorch has no meta kernel.
#pragma once

#include <algorithm>

#include "dtensor/rule.h"

namespace dtensor {

// Contiguous.
inline OutputMeta dense_meta(at::IntArrayRef sizes, c10::ScalarType dtype) {
  OutputMeta meta;
  meta.sizes = sizes;
  meta.strides.resize(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) {
    meta.strides[i - 1] = meta.strides[i] * std::max<std::int64_t>(sizes[i], 1);
  }
  meta.dtype = dtype;
  return meta;
}

inline OutputMeta undefined_meta() {
  OutputMeta meta;
  meta.defined = false;
  return meta;
}

}  // namespace dtensor
