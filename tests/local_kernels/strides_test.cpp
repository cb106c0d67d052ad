// Strides of results equal those of one device.
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Place = std::function<at::Tensor(const at::Tensor&)>;
using Run = std::function<at::Tensor(const Place&)>;
using Calls = std::vector<std::pair<const char*, Run>>;

void expect_strides_of_one_device(const Calls& calls) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    for (const auto& [name, run] : calls) {
      const at::Tensor expected = run([](const at::Tensor& t) { return t; });
      const at::Tensor actual =
          run([&](const at::Tensor& t) { return at::Tensor(distribute_tensor(t, mesh, {Shard(0)})); });
      EXPECT_EQ(actual.sizes(), expected.sizes()) << name;
      EXPECT_EQ(actual.strides(), expected.strides()) << name;
      EXPECT_TRUE(at::equal(DTensor(actual).full_tensor(), expected)) << name;
    }
  });
}

at::Tensor images() { return at::arange(2 * 8 * 4 * 6, at::kDouble).reshape({2, 8, 4, 6}); }
at::Tensor channels_last(const at::Tensor& x) { return x.contiguous(at::MemoryFormat::ChannelsLast); }
at::Tensor volumes_last() {
  const at::Tensor x = at::arange(2 * 3 * 4 * 6 * 4, at::kDouble).reshape({2, 3, 4, 6, 4});
  return x.contiguous(at::MemoryFormat::ChannelsLast3d);
}

TEST(Strides, FourierTransformsEqualOneDevice) {
  const at::Tensor x = images(), complex = at::complex(x, x);
  expect_strides_of_one_device({
      {"fft", [&](auto& place) { return at::_fft_c2c(place(complex), {1}, 0, true); }},
      {"fft of two",
       [&](auto& place) {
         return at::_fft_c2c(place(complex), {1, 2}, 0, true);
       }},
      {"transposed", [&](auto& place) { return at::_fft_c2c(place(complex.transpose(1, 3)), {2}, 0, true); }},
      {"rfft", [&](auto& place) { return at::_fft_r2c(place(x), {2}, 0, true); }},
      {"irfft", [&](auto& place) { return at::_fft_c2r(place(complex), {1}, 0, 14); }},
  });
}

TEST(Strides, PoolingEqualsOneDevice) {
  const at::Tensor last = channels_last(images()), volumes = volumes_last();
  const at::Tensor positions = channels_last(at::zeros({2, 8, 4, 6}, at::kLong));
  expect_strides_of_one_device({
      {"max_unpool2d",
       [&](auto& place) {
         return at::max_unpool2d(place(last), place(positions), {8, 12});
       }},
      {"max_pool2d_backward",
       [&](auto& place) {
         const auto input = place(last);
         const auto [values, indices] = at::max_pool2d_with_indices(input, {2, 2});
         return at::max_pool2d_with_indices_backward(values, input, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false, indices);
       }},
      {"max_pool3d", [&](auto& place) { return std::get<0>(at::max_pool3d_with_indices(place(volumes), 2)); }},
      {"max_pool3d indices", [&](auto& place) { return std::get<1>(at::max_pool3d_with_indices(place(volumes), 2)); }},
      {"max_pool3d_backward",
       [&](auto& place) {
         const auto input = place(volumes);
         const auto [values, indices] = at::max_pool3d_with_indices(input, 2);
         return at::max_pool3d_with_indices_backward(values, input, 2, 2, 0, 1, false, indices);
       }},
      {"adaptive_avg_pool2d",
       [&](auto& place) {
         return at::adaptive_avg_pool2d(place(last), {2, 3});
       }},
      {"adaptive_avg_pool2d to one",
       [&](auto& place) {
         return at::adaptive_avg_pool2d(place(last), {1, 1});
       }},
      {"_adaptive_avg_pool2d_backward",
       [&](auto& place) { return at::_adaptive_avg_pool2d_backward(place(last), place(last)); }},
      {"_adaptive_avg_pool3d_backward",
       [&](auto& place) { return at::_adaptive_avg_pool3d_backward(place(volumes), place(volumes)); }},
  });
}

TEST(Strides, PaddingAndShufflesEqualOneDevice) {
  const at::Tensor x = images(), last = channels_last(x), permuted = x.transpose(0, 1).contiguous().transpose(0, 1);
  const at::Tensor padded = at::ones({2, 8, 6, 8}, at::kDouble);
  expect_strides_of_one_device({
      {"reflection_pad2d",
       [&](auto& place) {
         return at::reflection_pad2d(place(last), {1, 1, 1, 1});
       }},
      {"reflection_pad2d_backward",
       [&](auto& place) {
         return at::reflection_pad2d_backward(place(padded), place(last), {1, 1, 1, 1});
       }},
      {"pixel_shuffle", [&](auto& place) { return at::pixel_shuffle(place(last), 2); }},
      {"pixel_shuffle, permuted", [&](auto& place) { return at::pixel_shuffle(place(permuted), 2); }},
      {"pixel_unshuffle", [&](auto& place) { return at::pixel_unshuffle(place(last), 2); }},
      {"pixel_shuffle of nothing",
       [&](auto& place) {
         return at::pixel_shuffle(place(at::zeros({2, 8, 0, 6})), 2);
       }},
      {"pixel_unshuffle of nothing",
       [&](auto& place) {
         return at::pixel_unshuffle(place(at::zeros({0, 8, 4, 6})), 2);
       }},
      {"channel_shuffle", [&](auto& place) { return at::channel_shuffle(place(last), 2); }},
      {"channel_shuffle, permuted", [&](auto& place) { return at::channel_shuffle(place(permuted), 2); }},
  });
}

TEST(Strides, FlipsAndAnglesEqualOneDevice) {
  const at::Tensor x = images(), complex = at::complex(x, x + 1).sum(3).sum(2);
  expect_strides_of_one_device({
      {"flip, channels last", [&](auto& place) { return at::flip(place(channels_last(x)), {1}); }},
      {"flip, transposed",
       [&](auto& place) {
         return at::flip(place(x.transpose(0, 2)), {0, 3});
       }},
      {"flip, expanded",
       [&](auto& place) {
         return at::flip(place(at::ones({1, 5})).expand({4, 5}), {1});
       }},
      {"angle", [&](auto& place) { return at::angle(place(complex.t())); }},
      {"angle of real numbers", [&](auto& place) { return at::angle(place(x.transpose(0, 2))); }},
  });
}

TEST(Strides, ConvolutionsWithoutChannelsEqualOneDevice) {
  const at::Tensor x = at::zeros({2, 0, 5, 5}), weight = at::zeros({4, 0, 2, 2}), bias = at::ones({4});
  const at::Tensor grad = at::zeros({2, 0, 4, 4});
  expect_strides_of_one_device({
      {"conv2d", [&](auto& place) { return at::conv2d(place(x), place(weight), place(bias)); }},
      {"convolution_backward",
       [&](auto& place) {
         return std::get<1>(at::convolution_backward(place(grad), place(x), place(weight), {}, {1, 1}, {0, 0}, {1, 1},
                                                     false, {0, 0}, 1, {true, true, false}));
       }},
  });
}

}  // namespace
}  // namespace dtensor::test
