#include "model.h"

#include <ATen/ATen.h>

#include <cmath>

namespace unet {
namespace {

constexpr std::int64_t kGroups = 2;

// Channels in units of the model's channels (0: one channel), kernel, stride; `transposed` doubles the sizes.
struct Layer {
  std::int64_t in, out, kernel, stride;
  bool transposed = false;
};

// Levels down, the lowest level, levels up. The layers after a transposed one read two concatenated tensors.
constexpr Layer kLayers[kConvolutions] = {{0, 1, 3, 1}, {1, 1, 3, 1},       {1, 2, 2, 2}, {2, 2, 3, 1},
                                          {2, 4, 2, 2}, {4, 4, 3, 1},       {4, 4, 3, 1}, {4, 2, 2, 2, true},
                                          {4, 2, 3, 1}, {2, 1, 2, 2, true}, {2, 1, 3, 1}, {1, 0, 1, 1}};

at::Tensor convolve(const Parameters& p, std::int64_t layer, const at::Tensor& x) {
  const Layer& l = kLayers[layer];
  const at::Tensor &weight = p[static_cast<std::size_t>(2 * layer)], &bias = p[static_cast<std::size_t>(2 * layer + 1)];
  return l.transposed ? at::conv_transpose3d(x, weight, bias, l.stride)
                      : at::conv3d(x, weight, bias, l.stride, at::IntArrayRef{l.stride == 1 ? l.kernel / 2 : 0});
}

at::Tensor block(const Parameters& p, std::int64_t layer, const at::Tensor& x) {
  const auto norm = static_cast<std::size_t>(2 * (kConvolutions + layer));
  return at::silu(at::group_norm(convolve(p, layer, x), kGroups, p[norm], p[norm + 1]));
}

}  // namespace

Parameters random_parameters(std::int64_t channels, std::uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  Parameters all;
  const auto count = [&](std::int64_t units) { return units == 0 ? 1 : units * channels; };
  for (const Layer& l : kLayers) {
    const auto in = count(l.in), out = count(l.out), k = l.kernel;
    const std::vector<std::int64_t> sizes{l.transposed ? in : out, l.transposed ? out : in, k, k, k};
    const double scale = 1 / std::sqrt(static_cast<double>(in * k * k * k));
    all.push_back(at::empty(sizes, at::kDouble).uniform_(-scale, scale, generator));
    all.push_back(at::empty({out}, at::kDouble).uniform_(-scale, scale, generator));
  }
  for (std::int64_t layer = 0; layer + 1 < kConvolutions; ++layer) {
    all.push_back(at::ones({count(kLayers[layer].out)}, at::kDouble));
    all.push_back(at::zeros({count(kLayers[layer].out)}, at::kDouble));
  }
  return all;
}

at::Tensor forward(const Parameters& p, const at::Tensor& volume) {
  const at::Tensor top = block(p, 1, block(p, 0, volume));
  const at::Tensor middle = block(p, 3, block(p, 2, top));
  at::Tensor x = block(p, 6, block(p, 5, block(p, 4, middle)));
  x = block(p, 8, at::cat({block(p, 7, x), middle}, 1));
  x = block(p, 10, at::cat({block(p, 9, x), top}, 1));
  return convolve(p, 11, x);
}

}  // namespace unet
