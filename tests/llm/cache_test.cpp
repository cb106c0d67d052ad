// A cache of keys and values by itself: what it holds serves every mode.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "dtensor/nn/kv_cache.h"

namespace {

// A prompt in inference mode, tokens without it, and the other way round.
TEST(KvCache, HoldsTokensOfEveryMode) {
  for (const bool inference_first : {true, false}) {
    dtensor::nn::KVCache cache(1, 4);
    const at::Tensor keys = at::randn({1, 2, 4, 3}), values = at::randn({1, 2, 4, 5});
    for (const bool first : {true, false}) {
      const c10::InferenceMode mode(first == inference_first);
      const at::NoGradGuard no_grad;
      const std::int64_t begin = first ? 0 : 3, count = first ? 3 : 1;
      cache.append(0, keys.narrow(2, begin, count), values.narrow(2, begin, count));
      cache.advance(count);
    }
    EXPECT_TRUE(at::equal(cache.keys(0), keys));
    EXPECT_TRUE(at::equal(cache.values(0), values));
  }
}

}  // namespace
