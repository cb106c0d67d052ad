// PyTorch's multi-tensor optimizers, formula by formula, in list operators (torch/optim, not capturable), which
// LibTorch does not have. Parameters may be on any mixture of meshes.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <vector>

namespace dtensor::test {

using Tensors = std::vector<at::Tensor>;

// Lists of state with one entry for each parameter.
struct ListOptimizer {
  explicit ListOptimizer(Tensors p) : params(std::move(p)) {}
  virtual ~ListOptimizer() = default;
  virtual void step(Tensors grads) = 0;

  Tensors zeros() const {
    Tensors list;
    for (const auto& p : params) list.push_back(at::zeros_like(p));
    return list;
  }
  // One scalar for each parameter, as PyTorch passes step sizes.
  std::vector<at::Scalar> each(double value) const { return std::vector<at::Scalar>(params.size(), value); }

  Tensors params;
  double steps = 0;
};

struct RmsProp final : ListOptimizer {
  using ListOptimizer::ListOptimizer;
  Tensors square = zeros(), average = zeros(), momentum = zeros();
  void step(Tensors grads) override {
    grads = at::_foreach_add(grads, params, 0.01);
    at::_foreach_mul_(square, 0.99);
    at::_foreach_addcmul_(square, grads, grads, 0.01);
    at::_foreach_lerp_(average, grads, 0.01);
    auto root = at::_foreach_addcmul(square, average, average, -1);
    at::_foreach_sqrt_(root);
    at::_foreach_add_(root, 1e-3);
    at::_foreach_mul_(momentum, 0.9);
    at::_foreach_addcdiv_(momentum, grads, root);
    at::_foreach_add_(params, momentum, -0.01);
  }
};

struct Adadelta final : ListOptimizer {
  using ListOptimizer::ListOptimizer;
  Tensors square = zeros(), sum = zeros();
  void step(Tensors grads) override {
    at::_foreach_mul_(square, 0.9);
    at::_foreach_addcmul_(square, grads, grads, 0.1);
    auto root = at::_foreach_add(square, 1e-6), deltas = at::_foreach_add(sum, 1e-6);
    at::_foreach_sqrt_(root);
    at::_foreach_sqrt_(deltas);
    at::_foreach_div_(deltas, root);
    at::_foreach_mul_(deltas, grads);
    at::_foreach_mul_(sum, 0.9);
    at::_foreach_addcmul_(sum, deltas, deltas, 0.1);
    at::_foreach_add_(params, deltas, -1.0);
  }
};

struct Adamax final : ListOptimizer {
  using ListOptimizer::ListOptimizer;
  Tensors average = zeros(), largest = zeros();
  void step(Tensors grads) override {
    at::_foreach_lerp_(average, grads, 0.1);
    at::_foreach_mul_(largest, 0.999);
    grads = at::_foreach_abs(grads);
    at::_foreach_add_(grads, 1e-8);
    at::_foreach_maximum_(largest, grads);
    at::_foreach_addcdiv_(params, average, largest, each(-0.002 / (1 - std::pow(0.9, ++steps))));
  }
};

struct NAdam final : ListOptimizer {
  using ListOptimizer::ListOptimizer;
  Tensors average = zeros(), square = zeros();
  double product = 1;
  static double mu(double step) { return 0.9 * (1 - 0.5 * std::pow(0.96, step * 0.004)); }
  void step(Tensors grads) override {
    const double now = mu(++steps), next = mu(steps + 1);
    product *= now;
    at::_foreach_lerp_(average, grads, 0.1);
    at::_foreach_mul_(square, 0.999);
    at::_foreach_addcmul_(square, grads, grads, 0.001);
    auto root = at::_foreach_sqrt(square);
    at::_foreach_div_(root, each(std::sqrt(1 - std::pow(0.999, steps))));
    at::_foreach_add_(root, 1e-8);
    at::_foreach_addcdiv_(params, grads, root, each(-0.002 * (1 - now) / (1 - product)));
    at::_foreach_addcdiv_(params, average, root, each(-0.002 * next / (1 - product * next)));
  }
};

struct RAdam final : ListOptimizer {
  using ListOptimizer::ListOptimizer;
  Tensors average = zeros(), square = zeros();
  void step(Tensors grads) override {
    const double t = ++steps, limit = 2 / (1 - 0.999) - 1, power = std::pow(0.999, t);
    const double length = limit - 2 * t * power / (1 - power), first = 1 - std::pow(0.9, t);
    const bool rectified = length > 5;
    const double rect =
        rectified ? std::sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)) : 0;
    at::_foreach_lerp_(average, grads, 0.1);
    at::_foreach_mul_(square, 0.999);
    at::_foreach_addcmul_(square, grads, grads, 0.001);
    auto buffer = at::_foreach_sqrt(square);
    at::_foreach_add_(buffer, 1e-8);
    at::_foreach_div_(buffer, each(rectified ? std::sqrt(1 - power) * rect : -1e300));
    at::_foreach_reciprocal_(buffer);
    if (!rectified) at::_foreach_zero_(buffer);
    at::_foreach_add_(buffer, each(rectified ? 0 : 1));
    at::_foreach_mul_(buffer, each(-0.001 / first));
    at::_foreach_addcmul_(params, average, buffer);
  }
};

// Its step sizes and weights are regular scalar tensors.
struct Asgd final : ListOptimizer {
  using ListOptimizer::ListOptimizer;
  Tensors means = zeros();
  Tensors numbers(double value) const {
    Tensors list;
    for (const auto& p : params) list.push_back(at::scalar_tensor(value, at::TensorOptions(p.scalar_type())));
    return list;
  }
  void step(Tensors grads) override {
    const double eta = 0.01 / std::pow(1 + 1e-4 * 0.01 * ++steps, 0.75);
    grads = at::_foreach_add(grads, params, 1e-4);
    at::_foreach_addcmul_(params, grads, numbers(eta), -1);
    const auto away = at::_foreach_sub(params, means);
    at::_foreach_addcmul_(means, away, numbers(1 / std::max(1.0, steps - 1)));
  }
};

struct Rprop final : ListOptimizer {
  using ListOptimizer::ListOptimizer;
  Tensors previous = zeros(), sizes = at::_foreach_add(zeros(), 0.01);
  void step(Tensors grads) override {
    auto signs = at::_foreach_mul(grads, previous);
    at::_foreach_sign_(signs);
    for (std::size_t i = 0; i < params.size(); ++i) {
      const auto up = signs[i].gt(0), down = signs[i].lt(0);
      grads[i] = grads[i].masked_fill(down, 0);
      signs[i] = signs[i].masked_fill(signs[i].eq(0), 1).masked_fill(up, 1.2).masked_fill(down, 0.5);
    }
    at::_foreach_copy_(previous, grads);
    at::_foreach_mul_(sizes, signs);
    at::_foreach_clamp_min_(sizes, 1e-6);
    at::_foreach_clamp_max_(sizes, 50);
    at::_foreach_addcmul_(params, at::_foreach_sign(grads), sizes, -1);
  }
};

// Fused kernels with their step counts.
struct Fused final : ListOptimizer {
  enum class Kind { adam, adamw, sgd, adagrad };
  Fused(Tensors p, Kind k) : ListOptimizer(std::move(p)), kind(k) {}
  Kind kind;
  Tensors first = zeros(), second = zeros(), counts = [this] {
    Tensors list;
    for (std::size_t i = 0; i < params.size(); ++i) list.push_back(at::zeros({}, at::kFloat));
    return list;
  }();
  void step(Tensors grads) override {
    at::_foreach_add_(counts, 1);
    switch (kind) {
      case Kind::adam:
        return at::_fused_adam_(params, grads, first, second, {}, counts, 0.01, 0.9, 0.999, 0.01, 1e-8, false, false);
      case Kind::adamw:
        return at::_fused_adamw_(params, grads, first, second, {}, counts, 0.01, 0.9, 0.999, 0.01, 1e-8, false, false);
      case Kind::sgd:
        return at::_fused_sgd_(params, grads, first, 0.01, 0.9, 0.01, 0, true, false, steps++ == 0);
      case Kind::adagrad:
        return at::_fused_adagrad_(params, grads, first, counts, 0.01, 0.01, 0.01, 1e-10, false);
    }
  }
};

}  // namespace dtensor::test
