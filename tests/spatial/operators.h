// Random spatial operators: a function of leaf tensors, the first of which is an image or a volume.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/ranks.h"

namespace dtensor::test {

using Tensors = std::vector<at::Tensor>;

struct SpatialOperator {
  std::string text;          // name and arguments
  std::int64_t dims;         // spatial dimensions, the last ones of the image
  std::vector<Shape> sizes;  // of the leaves; the image first
  std::function<at::Tensor(const Tensors&)> run;
};

constexpr int kSpatialKinds = 24;

struct Range {
  std::int64_t smallest, largest;
};

inline Shape drawn(Draw& draw, std::int64_t count, std::int64_t low, std::int64_t high) {
  return draw.sizes(count, low, high);
}

inline Shape image_of(Draw& draw, std::int64_t channels, const Shape& spatial) {
  Shape sizes{draw.integer(1, 2), channels};
  sizes.insert(sizes.end(), spatial.begin(), spatial.end());
  return sizes;
}

inline Shape spatial_sizes(Draw& draw, std::int64_t dims, Range range) {
  return drawn(draw, dims, range.smallest,
               dims == 3 ? std::min<std::int64_t>(range.largest, range.smallest + 6) : range.largest);
}

inline std::string text_of(const char* name, std::initializer_list<Shape> arguments) {
  std::string text = name;
  for (const Shape& a : arguments) text += c10::str(" ", at::IntArrayRef(a));
  return text;
}

inline SpatialOperator convolution(Draw& draw, Range range, bool transposed) {
  const auto dims = draw.integer(1, 3), groups = draw.integer(1, 2);
  const auto in = groups * draw.integer(1, 2), out = groups * draw.integer(1, 2);
  Shape kernel, stride = drawn(draw, dims, 1, 3), dilation = drawn(draw, dims, 1, 2);
  constexpr std::int64_t kKernels[] = {1, 2, 3, 4, 5, 7};
  for (std::int64_t d = 0; d < dims; ++d) kernel.push_back(kKernels[draw.integer(0, dims == 3 ? 2 : 5)]);
  Shape padding = drawn(draw, dims, 0, 3), extra(static_cast<std::size_t>(dims), 0),
        sizes = spatial_sizes(draw, dims, range);
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const auto span = dilation[d] * (kernel[d] - 1) + 1;
    sizes[d] = std::max(sizes[d], span - 2 * padding[d]);
    if (!transposed) continue;
    extra[d] = draw.integer(0, std::max(stride[d], dilation[d]) - 1);
    padding[d] = std::min(padding[d], ((sizes[d] - 1) * stride[d] + span - 1 + extra[d]) / 2);
  }
  Shape weight = transposed ? Shape{in, out / groups} : Shape{out, in / groups};
  weight.insert(weight.end(), kernel.begin(), kernel.end());
  const bool biased = draw.coin();
  std::vector<Shape> leaves{image_of(draw, in, sizes), weight};
  if (biased) leaves.push_back({out});
  return {text_of(transposed ? "conv_transpose" : "conv", {kernel, stride, padding, dilation, extra, {groups}}), dims,
          leaves, [=](const Tensors& t) {
            return at::convolution(t[0], t[1], biased ? std::optional(t[2]) : std::nullopt, stride, padding, dilation,
                                   transposed, extra, groups);
          }};
}

inline SpatialOperator pooling(Draw& draw, Range range, bool average) {
  const auto dims = draw.integer(2, 3);
  const Shape kernel = drawn(draw, dims, 1, 4), stride = drawn(draw, dims, 1, 3);
  Shape padding, sizes = spatial_sizes(draw, dims, range);
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    padding.push_back(draw.integer(0, kernel[d] / 2));
    sizes[d] = std::max(sizes[d], kernel[d]);
  }
  const bool ceil = draw.coin(), count = draw.coin();
  return {text_of(average ? "avg_pool" : "max_pool", {kernel, stride, padding, {ceil}, {count}}),
          dims,
          {image_of(draw, draw.integer(1, 2), sizes)},
          [=](const Tensors& t) {
            if (average && dims == 2) return at::avg_pool2d(t[0], kernel, stride, padding, ceil, count);
            if (average) return at::avg_pool3d(t[0], kernel, stride, padding, ceil, count);
            return dims == 2 ? at::max_pool2d(t[0], kernel, stride, padding, 1, ceil)
                             : at::max_pool3d(t[0], kernel, stride, padding, 1, ceil);
          }};
}

inline SpatialOperator adaptive_average(Draw& draw, Range range) {
  const auto dims = draw.integer(1, 3);
  const Shape sizes = spatial_sizes(draw, dims, range), target = drawn(draw, dims, 1, 7);
  return {
      text_of("adaptive_avg_pool", {target}), dims, {image_of(draw, draw.integer(1, 2), sizes)}, [=](const Tensors& t) {
        return dims == 1   ? at::adaptive_avg_pool1d(t[0], target)
               : dims == 2 ? at::adaptive_avg_pool2d(t[0], target)
                           : at::adaptive_avg_pool3d(t[0], target);
      }};
}

inline SpatialOperator padding(Draw& draw, Range range, const char* mode) {
  const auto dims = draw.integer(1, 3);
  const Shape sizes = spatial_sizes(draw, dims, range);
  Shape amounts;
  for (std::int64_t d = dims; d-- > 0;) {
    const auto most = sizes[static_cast<std::size_t>(d)] - 1;
    for (int side = 0; side < 2; ++side) amounts.push_back(draw.integer(0, std::min<std::int64_t>(most, 4)));
  }
  return {text_of(mode, {amounts}), dims, {image_of(draw, draw.integer(1, 2), sizes)}, [=](const Tensors& t) {
            return at::pad(t[0], amounts, mode);
          }};
}

inline at::Tensor upsampled(const at::Tensor& x, int mode, const Shape& size, bool align) {
  const auto dims = size.size();
  if (mode == 0)
    return dims == 1   ? at::upsample_nearest1d(x, size)
           : dims == 2 ? at::upsample_nearest2d(x, size)
                       : at::upsample_nearest3d(x, size);
  if (mode == 1) {
    return dims == 1   ? at::_upsample_nearest_exact1d(x, size)
           : dims == 2 ? at::_upsample_nearest_exact2d(x, size)
                       : at::_upsample_nearest_exact3d(x, size);
  }
  if (mode == 3 && dims == 2) return at::upsample_bicubic2d(x, size, align);
  return dims == 1   ? at::upsample_linear1d(x, size, align)
         : dims == 2 ? at::upsample_bilinear2d(x, size, align)
                     : at::upsample_trilinear3d(x, size, align);
}

inline SpatialOperator upsampling(Draw& draw, Range range) {
  const auto dims = draw.integer(1, 3);
  const int mode = static_cast<int>(draw.integer(0, 3));
  const Shape sizes = spatial_sizes(draw, dims, range);
  Shape target;
  for (const auto n : sizes) target.push_back(draw.coin() ? 2 * n : draw.integer(1, 2 * n + 1));
  const bool align = draw.coin();
  return {text_of("upsample", {{mode}, target, {align}}),
          dims,
          {image_of(draw, draw.integer(1, 2), sizes)},
          [=](const Tensors& t) { return upsampled(t[0], mode, target, align); }};
}

inline SpatialOperator antialiased(Draw& draw, Range range) {
  const Shape sizes = spatial_sizes(draw, 2, range);
  // With one column, ATen ignores the weights of rows.
  const Shape target{draw.integer(1, 2 * sizes[0]), draw.integer(2, 2 * sizes[1] + 1)};
  const bool cubic = draw.coin(), align = draw.coin();
  return {text_of("antialiased upsample", {{cubic}, target, {align}}),
          2,
          {image_of(draw, draw.integer(1, 2), sizes)},
          [=](const Tensors& t) {
            return cubic ? at::_upsample_bicubic2d_aa(t[0], target, align)
                         : at::_upsample_bilinear2d_aa(t[0], target, align);
          }};
}

inline SpatialOperator roll(Draw& draw, Range range) {
  const auto dims = draw.integer(1, 3);
  const Shape shifts = drawn(draw, dims, -9, 9);
  Shape along;
  for (std::int64_t d = 0; d < dims; ++d) along.push_back(2 + d);
  return {
      text_of("roll", {shifts}), dims, {image_of(draw, 2, spatial_sizes(draw, dims, range))}, [=](const Tensors& t) {
        return t[0].roll(shifts, along);
      }};
}

inline SpatialOperator shuffle(Draw& draw, Range range, bool expands) {
  const auto factor = draw.integer(1, 3);
  Shape sizes = spatial_sizes(draw, 2, range);
  for (auto& n : sizes) n = expands ? n : n * factor;
  const auto channels = draw.integer(1, 2) * (expands ? factor * factor : 1);
  return {
      text_of(expands ? "pixel_shuffle" : "pixel_unshuffle", {{factor}}),
      2,
      {image_of(draw, channels, sizes)},
      [=](const Tensors& t) { return expands ? at::pixel_shuffle(t[0], factor) : at::pixel_unshuffle(t[0], factor); }};
}

// unfold, and fold of its result.
inline SpatialOperator windows(Draw& draw, Range range, bool folds) {
  const Shape kernel = drawn(draw, 2, 1, 3), dilation = drawn(draw, 2, 1, 2), padding = drawn(draw, 2, 0, 2),
              stride = drawn(draw, 2, 1, 3);
  Shape sizes = spatial_sizes(draw, 2, range);
  for (std::size_t d = 0; d < 2; ++d) sizes[d] = std::max(sizes[d], dilation[d] * (kernel[d] - 1) + 1);
  return {text_of(folds ? "fold" : "unfold", {kernel, dilation, padding, stride}),
          2,
          {image_of(draw, 2, sizes)},
          [=](const Tensors& t) {
            const auto columns = at::im2col(t[0], kernel, dilation, padding, stride);
            return folds ? at::col2im(columns * columns, sizes, kernel, dilation, padding, stride) : columns;
          }};
}

inline SpatialOperator norm(Draw& draw, Range range, int kind) {
  const auto dims = draw.integer(1, 3), groups = draw.integer(1, 2), channels = groups * draw.integer(1, 2);
  Shape sizes = spatial_sizes(draw, dims, range);
  sizes[0] = std::max<std::int64_t>(sizes[0], 2);
  return {text_of(kind == 0 ? "group_norm" : "batch_norm", {{groups}}),
          dims,
          {image_of(draw, channels, sizes), {channels}, {channels}},
          [=](const Tensors& t) {
            return kind == 0 ? at::group_norm(t[0], groups, t[1], t[2])
                             : at::batch_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false);
          }};
}

// A circular convolution of the image with itself.
inline SpatialOperator fourier(Draw& draw, Range range) {
  const auto dims = draw.integer(2, 3);
  const Shape sizes = spatial_sizes(draw, dims, range);
  Shape along;
  for (std::int64_t d = 0; d < dims; ++d) along.push_back(2 + d);
  const bool real = draw.coin();
  return {text_of(real ? "rfftn" : "fftn", {along}), dims, {image_of(draw, 1, sizes)}, [=](const Tensors& t) {
            const at::Tensor spectrum =
                real ? at::fft_rfftn(t[0], std::nullopt, along) : at::fft_fftn(t[0], std::nullopt, along);
            return real ? at::fft_irfftn(spectrum * spectrum, sizes, along)
                        : at::real(at::fft_ifftn(spectrum * spectrum, std::nullopt, along));
          }};
}

// The rows that a finite difference reads.
inline SpatialOperator slice(Draw& draw, Range range) {
  const auto dims = draw.integer(1, 3);
  const Shape sizes = spatial_sizes(draw, dims, range);
  Shape starts, ends, steps;
  for (const auto n : sizes) {
    starts.push_back(draw.coin() ? draw.integer(0, std::min<std::int64_t>(n - 1, 4)) : -draw.integer(1, n));
    const auto from = (starts.back() + n) % n;
    ends.push_back(draw.coin() ? n : std::max(from + 1, n - draw.integer(0, 4)));
    steps.push_back(draw.integer(0, 2) > 0 ? 1 : draw.integer(2, 3));
  }
  return {text_of("slice", {starts, ends, steps}), dims, {image_of(draw, 2, sizes)}, [=](const Tensors& t) {
            at::Tensor x = t[0];
            for (std::size_t d = 0; d < sizes.size(); ++d) {
              x = x.slice(2 + static_cast<std::int64_t>(d), starts[d], ends[d], steps[d]);
            }
            return x * x;
          }};
}

// Differences along each dimension: of slices, by diff and by torch.gradient.
inline SpatialOperator difference(Draw& draw, Range range) {
  const auto dims = draw.integer(1, 3);
  Shape sizes = spatial_sizes(draw, dims, range);
  for (auto& n : sizes) n = std::max<std::int64_t>(n, 4);
  const Shape kinds = drawn(draw, dims, 0, 2);
  return {text_of("difference", {kinds}), dims, {image_of(draw, 1, sizes)}, [=](const Tensors& t) {
            at::Tensor x = t[0];
            for (std::size_t i = 0; i < kinds.size(); ++i) {
              const auto d = 2 + static_cast<std::int64_t>(i);
              if (kinds[i] == 0) x = x.slice(d, 1) - x.slice(d, 0, -1);
              if (kinds[i] == 1) x = x.diff(1, d);
              if (kinds[i] == 2) x = at::gradient(x, std::optional<at::Scalar>(0.5), d)[0];
            }
            return x * x;
          }};
}

// Concatenation of a part before, the image itself and a part after it; an image without rows may be among them.
inline SpatialOperator concatenation(Draw& draw, Range range) {
  const auto dims = draw.integer(1, 3), dim = 2 + draw.integer(0, dims - 1);
  const Shape sizes = spatial_sizes(draw, dims, range);
  const auto n = sizes[static_cast<std::size_t>(dim - 2)];
  const auto before = draw.integer(0, n), after = draw.integer(0, n);
  return {text_of("cat", {{dim, before, after}}), dims, {image_of(draw, 2, sizes)}, [=](const Tensors& t) {
            return at::cat({t[0].narrow(dim, n - before, before), t[0] * t[0], t[0].narrow(dim, 0, after)}, dim);
          }};
}

// The product of each part of a split, in reverse order.
inline SpatialOperator splitting(Draw& draw, Range range, bool sized) {
  const auto dims = draw.integer(1, 3), dim = 2 + draw.integer(0, dims - 1);
  const Shape sizes = spatial_sizes(draw, dims, range);
  const auto n = sizes[static_cast<std::size_t>(dim - 2)];
  const auto first = draw.integer(0, n);
  return {text_of(sized ? "split_with_sizes" : "split", {{dim, first}}),
          dims,
          {image_of(draw, 2, sizes)},
          [=](const Tensors& t) {
            auto parts = sized ? t[0].split_with_sizes({first, n - first}, dim)
                               : t[0].split(std::max<std::int64_t>(first, 1), dim);
            for (auto& part : parts) part = part * part;
            std::reverse(parts.begin(), parts.end());
            return at::cat(parts, dim);
          }};
}

// An operator of kind `kind` in [0, kSpatialKinds) with random arguments. `smallest`, `largest`: sizes of spatial
// dimensions; enlarged where the operator needs more.
inline SpatialOperator spatial_operator(Draw& draw, int kind, std::int64_t smallest, std::int64_t largest) {
  const Range range{smallest, largest};
  constexpr const char* kModes[] = {"constant", "reflect", "replicate", "circular"};
  switch (kind) {
    case 0:
    case 1:
    case 2:
      return convolution(draw, range, false);
    case 3:
      return convolution(draw, range, true);
    case 4:
    case 5:
      return pooling(draw, range, kind == 4);
    case 6:
    case 7:
    case 8:
    case 9:
      return padding(draw, range, kModes[kind - 6]);
    case 10:
      return upsampling(draw, range);
    case 11:
      return roll(draw, range);
    case 12:
      return shuffle(draw, range, draw.coin());
    case 13:
      return windows(draw, range, draw.coin());
    case 14:
      return fourier(draw, range);
    case 15:
      return adaptive_average(draw, range);
    case 16:
      return antialiased(draw, range);
    case 17:
    case 18:
      return norm(draw, range, kind - 17);
    case 19:
      return slice(draw, range);
    case 20:
      return difference(draw, range);
    case 21:
      return concatenation(draw, range);
    default:
      return splitting(draw, range, kind == 22);
  }
}

}  // namespace dtensor::test
