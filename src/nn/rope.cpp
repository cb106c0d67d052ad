// Frequencies of each scaling method, in float64, and the rotation.
#include "dtensor/nn.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "dtensor/bit_identical.h"
#include "internal/aten_scopes.h"

namespace dtensor::nn {
namespace {

// Index of yarn's ramp at which a frequency makes `turns` rotations over the original positions.
double yarn_bound(const RopeOptions& o, double turns) {
  const auto positions = static_cast<double>(o.original_positions);
  return static_cast<double>(o.size) * std::log(positions / (turns * 2 * std::numbers::pi)) / (2 * std::log(o.base));
}

double yarn_frequency(const RopeOptions& o, double regular, std::int64_t i) {
  double low = yarn_bound(o, o.beta_fast), high = yarn_bound(o, o.beta_slow);
  if (o.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(o.size - 1));
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  return regular / o.factor * ramp + regular * (1 - ramp);
}

double llama3_frequency(const RopeOptions& o, double regular) {
  const double turns = static_cast<double>(o.original_positions) * regular / (2 * std::numbers::pi);
  if (turns < o.low_frequency) return regular / o.factor;
  if (turns > o.high_frequency) return regular;
  const double smooth = (turns - o.low_frequency) / (o.high_frequency - o.low_frequency);
  return (1 - smooth) * regular / o.factor + smooth * regular;
}

double base_of(const RopeOptions& o, std::int64_t length) {
  if (o.scaling != RopeScaling::dynamic || length <= o.max_positions) return o.base;
  const double ratio = static_cast<double>(length) / static_cast<double>(o.max_positions);
  const auto size = static_cast<double>(o.size);
  return o.base * std::pow(o.factor * ratio - (o.factor - 1), size / (size - 2));
}

double frequency(const RopeOptions& o, std::int64_t i, std::int64_t length) {
  const double regular = std::pow(base_of(o, length), -2 * static_cast<double>(i) / static_cast<double>(o.size));
  switch (o.scaling) {
    case RopeScaling::linear:
      return regular / o.factor;
    case RopeScaling::yarn:
      return yarn_frequency(o, regular, i);
    case RopeScaling::longrope:
      return regular / (length > o.original_positions ? o.long_factors : o.short_factors)[static_cast<std::size_t>(i)];
    case RopeScaling::llama3:
      return llama3_frequency(o, regular);
    default:
      return regular;
  }
}

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

std::vector<double> frequencies_of(const RopeOptions& o, std::int64_t length) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < o.size / 2; ++i) values.push_back(frequency(o, i, length));
  return values;
}

bool depends_on_length(RopeScaling scaling) {
  return scaling == RopeScaling::dynamic || scaling == RopeScaling::longrope;
}

void check(const RopeOptions& o) {
  TORCH_CHECK(o.size > 0 && o.size % 2 == 0, "Rope: expected a positive even size, got ", o.size);
  TORCH_CHECK(o.base > 0 && o.factor > 0, "Rope: expected base > 0 and factor > 0, got ", o.base, " and ", o.factor);
  const bool from_original =
      o.scaling == RopeScaling::yarn || o.scaling == RopeScaling::longrope || o.scaling == RopeScaling::llama3;
  TORCH_CHECK(!from_original || o.original_positions > 0, "Rope: this scaling needs original_positions > 0, got ",
              o.original_positions);
  TORCH_CHECK(o.scaling != RopeScaling::dynamic || (o.max_positions > 0 && o.size > 2),
              "Rope: dynamic scaling needs max_positions > 0 and size > 2, got ", o.max_positions, " and ", o.size);
  const auto half = static_cast<std::size_t>(o.size / 2);
  TORCH_CHECK(o.scaling != RopeScaling::longrope || (o.short_factors.size() == half && o.long_factors.size() == half),
              "Rope: longrope needs ", half, " short and long factors, got ", o.short_factors.size(), " and ",
              o.long_factors.size());
}

}  // namespace

Rope::Rope(RopeOptions options) : options_(std::move(options)) { check(options_); }

at::Tensor Rope::frequencies(std::int64_t length) const {
  const NoMeshScopeGuard regular;  // angles are regular tensors, also within a MeshScope
  return at::tensor(frequencies_of(options_, length), at::kDouble);
}

double Rope::attention_factor() const {
  const RopeOptions& o = options_;
  if (o.attention_factor) return *o.attention_factor;
  if (o.scaling == RopeScaling::yarn) {
    const bool both = o.mscale != 0 && o.mscale_all_dim != 0;
    return both ? yarn_mscale(o.factor, o.mscale) / yarn_mscale(o.factor, o.mscale_all_dim) : yarn_mscale(o.factor, 1);
  }
  if (o.scaling != RopeScaling::longrope || o.factor <= 1) return 1;
  return std::sqrt(1 + std::log(o.factor) / std::log(static_cast<double>(o.original_positions)));
}

namespace {

// [count, frequencies] float64, computed one number at a time: the last elements of ATen's cos and sin are computed by
// other code, so the bits of an angle would depend on the number of positions.
Rope::Angles exact_angles(std::int64_t first, std::int64_t count, const std::vector<double>& frequencies) {
  std::vector<double> cos, sin;
  for (std::int64_t position = first; position < first + count; ++position) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
    }
  }
  const auto as_tensor = [&](const std::vector<double>& values) {
    return at::tensor(values, at::kDouble).view({count, std::ssize(frequencies)});
  };
  return {as_tensor(cos), as_tensor(sin)};
}

}  // namespace

Rope::Angles Rope::make(std::int64_t first, std::int64_t count, std::int64_t length, at::TensorOptions like) const {
  const double factor = attention_factor();
  if (BitIdentical::current()) {
    const Angles exact = exact_angles(first, count, frequencies_of(options_, length));
    return {(exact.cos * factor).to(like), (exact.sin * factor).to(like)};
  }
  const at::Tensor position = at::arange(first, first + count, at::kDouble);
  const at::Tensor angle = position.unsqueeze(1) * frequencies(length);
  return {(angle.cos() * factor).to(like), (angle.sin() * factor).to(like)};
}

Rope::Angles Rope::angles(std::int64_t first, std::int64_t count, at::TensorOptions like) const {
  const NoMeshScopeGuard regular;  // angles are regular tensors, also within a MeshScope
  const std::int64_t length = first + count;
  if (BitIdentical::current() && first > 0) {
    TORCH_CHECK_NOT_IMPLEMENTED(frequencies_of(options_, first) == frequencies_of(options_, length),
                                "Rope with frequencies that depend on the length has no bit-identical form after ",
                                first, " cached tokens of ", length, ". Pass all tokens in one call.");
  }
  // Kept angles may have been computed outside of the scope.
  if (depends_on_length(options_.scaling) || BitIdentical::current()) return make(first, count, length, like);
  const bool kept = kept_.cos.defined() && kept_.cos.size(0) >= length && kept_.cos.scalar_type() == like.dtype() &&
                    kept_.cos.device() == like.device();
  if (!kept) {
    const c10::InferenceMode off(false);  // cached angles are also used with gradients
    kept_ = make(0, first == 0 ? length : std::max<std::int64_t>(2 * length, 64), length, like);  // generation goes on
  }
  return {kept_.cos.narrow(0, first, count), kept_.sin.narrow(0, first, count)};
}

// Computed by token, which is the memory order of projections: attention returns its result in that of the queries, and
// the output projection takes it without a copy.
at::Tensor Rope::rotate(const at::Tensor& by_head, const Angles& angles) const {
  const std::int64_t size = options_.size, half = size / 2;
  const at::Tensor x = by_head.transpose(1, 2), cos = angles.cos.unsqueeze(1), sin = angles.sin.unsqueeze(1);
  const at::Tensor turned = x.size(3) == size ? x : x.narrow(3, 0, size);
  const at::Tensor first = options_.interleaved ? turned.slice(3, 0, size, 2) : turned.narrow(3, 0, half);
  const at::Tensor second = options_.interleaved ? turned.slice(3, 1, size, 2) : turned.narrow(3, half, half);
  // Interleaved pairs are written as halves, in queries and keys alike, so their products are the same.
  std::vector<at::Tensor> parts{first * cos - second * sin, second * cos + first * sin};
  if (x.size(3) > size) parts.push_back(x.narrow(3, size, x.size(3) - size));
  return at::cat(parts, 3).transpose(1, 2);
}

}  // namespace dtensor::nn
