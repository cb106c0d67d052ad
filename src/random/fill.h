// Fills a local tensor with its part of a random global tensor. Each value is a function of the key and of the
// element's global row-major index, so all layouts of the global tensor have the same values. Local tensors may have
// any strides; their sizes are those of the region. Argument checks and semantics are ATen's.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "dtensor/export.h"
#include "random/distribution.h"
#include "random/global_indices.h"
#include "random/philox.h"

namespace dtensor {

// Uniform in [from, to). float64 uses 53 random bits, other dtypes 24; rounding does not reach `to`. For complex dtypes
// this applies to both parts.
void fill_uniform(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double from = 0, double to = 1);
// For complex dtypes each part has half of the variance.
void fill_normal(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double mean = 0, double std = 1);
void fill_log_normal(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double mean, double std);
// 1 with probability p, for any dtype. The random numbers do not depend on the dtype.
void fill_bernoulli(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double p);
// `p` is a local tensor that broadcasts to `local`. Equal values of p give the same result as the scalar.
void fill_bernoulli(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const at::Tensor& p);
// Integers in [from, to), for any dtype that represents them. Without `to`, up to the largest value of the dtype; for
// floating-point dtypes, up to the largest integer below which all integers are exact.
void fill_integers(const at::Tensor& local, const GlobalRegion& region, RandomKey key, std::int64_t from,
                   std::optional<std::int64_t> to);
// As random_(): integers from 0 up to the largest one as above.
void fill_integers(const at::Tensor& local, const GlobalRegion& region, RandomKey key);
void fill_exponential(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double lambda);
void fill_geometric(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double p);
void fill_cauchy(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double median, double sigma);

// A full permutation of 0 .. n - 1, the same on every rank.
at::Tensor random_permutation(std::int64_t n, RandomKey key, at::TensorOptions options);

// Fills with the kernel of the tensor's device, or on the CPU with a copy if the device has no kernel.
void fill(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const Distribution& distribution);

// `local` is contiguous, not empty and on the kernel's device. Returns false if unsupported; the caller then fills on
// the CPU.
using FillKernel = bool (*)(const at::Tensor& local, const GlobalRegion& region, RandomKey key,
                            const Distribution& distribution);
// The CUDA library calls it at load time.
DTENSOR_API void register_fill_kernel(c10::DeviceType device, FillKernel kernel);
bool fill_cpu(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const Distribution& distribution);

}  // namespace dtensor
