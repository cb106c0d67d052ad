// Filling a local tensor with its part of a random global tensor. Each value is a function of the key and of the
// element's global row-major index, so every layout of the global tensor gets the same values. Local tensors may have
// any strides; their sizes are those of the region. Argument checks and meaning are ATen's.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "dtensor/export.h"
#include "random/distribution.h"
#include "random/global_indices.h"
#include "random/philox.h"

namespace dtensor {

// [from, to). float64 is drawn with 53 bits; the other dtypes with 24, then rounded, and never up to `to`. Complex:
// both parts.
void fill_uniform(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double from = 0, double to = 1);
// Complex: each part has half of the variance.
void fill_normal(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double mean = 0, double std = 1);
void fill_log_normal(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double mean, double std);
// 1 with probability p, any dtype. The draws do not depend on the dtype.
void fill_bernoulli(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double p);
// `p`: a local tensor that broadcasts to `local`. An equal p gives what the scalar gives.
void fill_bernoulli(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const at::Tensor& p);
// Integers in [from, to), any dtype that holds them; without `to` up to the dtype's largest (floats: the largest up to
// which all integers are exact).
void fill_integers(const at::Tensor& local, const GlobalRegion& region, RandomKey key, std::int64_t from,
                   std::optional<std::int64_t> to);
// What random_() gives: integers from 0 up to the largest as above.
void fill_integers(const at::Tensor& local, const GlobalRegion& region, RandomKey key);
void fill_exponential(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double lambda);
void fill_geometric(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double p);
void fill_cauchy(const at::Tensor& local, const GlobalRegion& region, RandomKey key, double median, double sigma);

// A permutation of 0 .. n - 1, whole: every rank computes it alike.
at::Tensor random_permutation(std::int64_t n, RandomKey key, at::TensorOptions options);

// Fills with `distribution`, by the kernel of the tensor's device; devices without one are filled by way of the CPU.
void fill(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const Distribution& distribution);

// `local` is contiguous, not empty and on the kernel's device. False: not served, fill it by way of the CPU.
using FillKernel = bool (*)(const at::Tensor& local, const GlobalRegion& region, RandomKey key,
                            const Distribution& distribution);
// Called by the CUDA part when it is loaded.
DTENSOR_API void register_fill_kernel(c10::DeviceType device, FillKernel kernel);
bool fill_cpu(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const Distribution& distribution);

}  // namespace dtensor
