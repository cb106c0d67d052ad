// Models on sharded images: the loss and the gradients of a training step equal one device.
#include <torch/torch.h>

#include <functional>

#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Tensors = std::vector<at::Tensor>;

// A model: sizes of the image, and a function that asks for its parameters in order.
using Parameter = std::function<at::Tensor(const Shape&)>;
struct Model {
  const char* name;
  Shape image;
  std::function<at::Tensor(const at::Tensor& image, const Parameter& parameter)> forward;
};

at::Tensor layer_norm(const at::Tensor& x, const Parameter& parameter) {
  const auto c = x.size(-1);
  return at::layer_norm(x, {c}, parameter({c}), parameter({c}));
}

at::Tensor linear(const at::Tensor& x, std::int64_t out, const Parameter& parameter) {
  return at::linear(x, parameter({out, x.size(-1)}), parameter({out}));
}

at::Tensor perceptron(const at::Tensor& x, const Parameter& parameter) {
  return linear(at::gelu(linear(x, 2 * x.size(-1), parameter)), x.size(-1), parameter);
}

at::Tensor attention(const at::Tensor& x, const Parameter& parameter) {  // [..., tokens, channels]
  const auto qkv = linear(x, 3 * x.size(-1), parameter).chunk(3, -1);
  return linear(at::softmax(at::matmul(qkv[0], qkv[1].transpose(-2, -1)), -1).matmul(qkv[2]), x.size(-1), parameter);
}

at::Tensor conv(const at::Tensor& x, std::int64_t out, std::int64_t kernel, std::int64_t stride, const Parameter& p,
                std::int64_t groups = 1) {
  return at::conv2d(x, p({out, x.size(1) / groups, kernel, kernel}), p({out}), stride, stride == 1 ? kernel / 2 : 0, 1,
                    groups);
}

at::Tensor conv_next(const at::Tensor& image, const Parameter& p) {
  at::Tensor x = conv(image, 4, 2, 2, p);
  for (int block = 0; block < 2; ++block) {
    const at::Tensor y = layer_norm(conv(x, 4, 7, 1, p, 4).permute({0, 2, 3, 1}), p);
    x = x + perceptron(y, p).permute({0, 3, 1, 2});
  }
  return conv(x, 8, 2, 2, p).mean(at::IntArrayRef{2, 3});
}

at::Tensor vision_transformer(const at::Tensor& image, const Parameter& p) {
  at::Tensor x = conv(at::relu(conv(image, 4, 3, 1, p)), 6, 4, 4, p).flatten(2).transpose(1, 2);
  x = x + attention(layer_norm(x, p), p);
  return (x + perceptron(layer_norm(x, p), p)).mean(1);
}

at::Tensor fourier_operator(const at::Tensor& image, const Parameter& p) {
  at::Tensor x = conv(image, 3, 1, 1, p);
  for (int layer = 0; layer < 2; ++layer) {
    const at::Tensor spectrum = at::fft_rfftn(x, std::nullopt, at::IntArrayRef{2, 3});
    const Shape modes{3, 3, spectrum.size(2), spectrum.size(3)};
    const at::Tensor weight = at::complex(p(modes), p(modes));
    const at::Tensor mixed = (spectrum.unsqueeze(1) * weight).sum(2);
    x = at::gelu(at::fft_irfftn(mixed, at::IntArrayRef{x.size(2), x.size(3)}, at::IntArrayRef{2, 3}) +
                 conv(x, 3, 1, 1, p));
  }
  return conv(x, 1, 1, 1, p);
}

// Attention within windows of 4 x 4, which the second block shifts.
at::Tensor swin(const at::Tensor& image, const Parameter& p) {
  constexpr std::int64_t kWindow = 4;
  at::Tensor x = conv(image, 4, 2, 2, p).permute({0, 2, 3, 1});
  const auto n = x.size(0), rows = x.size(1) / kWindow, columns = x.size(2) / kWindow, c = x.size(3);
  for (const std::int64_t shift : {std::int64_t{0}, kWindow / 2}) {
    const at::Tensor shifted = x.roll({-shift, -shift}, {1, 2});
    const at::Tensor windows = shifted.view({n, rows, kWindow, columns, kWindow, c})
                                   .permute({0, 1, 3, 2, 4, 5})
                                   .reshape({n, rows, columns, kWindow * kWindow, c});
    const at::Tensor mixed = attention(layer_norm(windows, p), p)
                                 .view({n, rows, columns, kWindow, kWindow, c})
                                 .permute({0, 1, 3, 2, 4, 5})
                                 .reshape({n, rows * kWindow, columns * kWindow, c});
    x = x + mixed.roll({shift, shift}, {1, 2});
    x = x + perceptron(layer_norm(x, p), p);
  }
  return x.mean(at::IntArrayRef{1, 2});
}

// The loss and the gradients of all parameters, which `place` puts on a mesh.
Tensors step(const Model& model, const at::Tensor& image, const std::function<at::Tensor(const at::Tensor&)>& place) {
  Draw draw(2);
  Tensors parameters;
  const auto y = model.forward(image, [&](const Shape& sizes) {
    parameters.push_back(place(draw.normal(sizes) * 0.3).requires_grad_());
    return parameters.back();
  });
  const at::Tensor loss = y.square().mean();
  loss.backward();
  Tensors all{loss.detach()};
  for (const auto& p : parameters) all.push_back(p.grad());
  return all;
}

TEST(SpatialModels, TrainingStepsEqualOneDevice) {
  const Model models[] = {{"ConvNeXt", {2, 3, 20, 12}, conv_next},
                          {"ViT", {1, 3, 16, 24}, vision_transformer},
                          {"FNO", {1, 1, 12, 10}, fourier_operator},
                          {"Swin", {1, 3, 32, 16}, swin}};
  for (const Model& model : models) {
    const at::Tensor image = Draw(1).normal(model.image);
    const auto expected = step(model, image, [](const at::Tensor& t) { return t; });
    for (const Shape& shape : {Shape{2}, Shape{2, 2}}) {
      on_mesh(shape, [&](const DeviceMesh& mesh) {
        Placements placements;
        for (std::size_t axis = 0; axis < shape.size(); ++axis)
          placements.push_back(Shard(2 + static_cast<std::int64_t>(axis)));
        const auto got = step(model, distribute_tensor(image, mesh, placements), [&](const at::Tensor& t) {
          return at::Tensor(distribute_tensor(t, mesh, Placements(shape.size())));
        });
        ASSERT_EQ(got.size(), expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          expect_close(got[i], expected[i], c10::str(model.name, " on ", at::IntArrayRef(shape), ", tensor ", i));
        }
      });
    }
  }
}

}  // namespace
}  // namespace dtensor::test
