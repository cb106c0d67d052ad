// Random programs of operators on images and volumes that have a bit-identical form. Each step may change all sizes.
#pragma once

#include "bit_identical/programs.h"

namespace dtensor::test {

class ImageProgramBuilder {
 public:
  ImageProgramBuilder(Draw& draw, at::ScalarType type) : draw_(draw), type_(type), spatial_(draw.integer(1, 3)) {
    Shape sizes{draw.integer(1, 5), 2 * draw.integer(1, 4)};
    for (std::int64_t d = 0; d < spatial_; ++d) sizes.push_back(draw.integer(2, spatial_ == 3 ? 6 : 14));
    add_operand(sizes);
    x_ = inputs_[0];
  }

  Program build(std::int64_t steps) {
    for (std::int64_t i = 0; i < steps; ++i) add_step();
    add_operand(x_.sizes().vec());
    const auto run = [steps = steps_](const Tensors& inputs) {
      at::Tensor x = inputs[0];
      for (const auto& step : steps) x = step(x, inputs);
      return x;
    };
    return {inputs_, text_, run};
  }

 private:
  using Step = std::function<at::Tensor(const at::Tensor&, const Tensors&)>;

  std::size_t add_operand(const Shape& sizes) {
    inputs_.push_back(draw_.normal(sizes, type_));
    return inputs_.size() - 1;
  }
  void add(const std::string& name, const Step& step) {
    text_ += (text_.empty() ? "" : ", ") + name;
    steps_.push_back(step);
    x_ = step(x_, inputs_);
  }

  void add_step() {
    switch (draw_.integer(0, 9)) {
      case 0:
      case 1:
      case 2:
        return add_convolution();
      case 3:
        return add_group_norm();
      case 4:
        return add_batch_norm();
      case 5:
        return add_pooling();
      case 6:
        return add_resampling();
      case 7:
        return add_padding();
      case 8:
        return add_loss();
      default:
        return add("silu", [](const at::Tensor& x, const Tensors&) { return at::silu(x); });
    }
  }

  Shape drawn(std::int64_t low, std::int64_t high) { return draw_.sizes(spatial_, low, high); }

  void add_convolution() {
    const std::int64_t channels = x_.size(1), groups = draw_.coin()                        ? 1
                                                       : channels % 2 == 0 && draw_.coin() ? 2
                                                                                           : channels;
    const std::int64_t out = groups * draw_.integer(1, std::max<std::int64_t>(1, 8 / groups));
    const bool transposed = x_.numel() < 4000 && draw_.integer(0, 2) == 0;
    Shape kernel = drawn(1, 3);
    const Shape stride = drawn(1, 2), dilation = drawn(1, 2), padding = drawn(0, 1);
    Shape extra(kernel.size(), 0);
    for (std::size_t d = 0; d < kernel.size(); ++d) {  // windows fit into the padded image
      const auto size = x_.size(2 + static_cast<std::int64_t>(d));
      if (dilation[d] * (kernel[d] - 1) + 1 > size) kernel[d] = 1;
      if (transposed && (size - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1 <= 2 * padding[d]) kernel[d] += 2;
      if (transposed && stride[d] > 1) extra[d] = draw_.integer(0, 1);
    }
    Shape sizes = transposed ? Shape{channels, out / groups} : Shape{out, channels / groups};
    sizes.insert(sizes.end(), kernel.begin(), kernel.end());
    const auto w = add_operand(sizes), b = add_operand({out});
    const bool biased = draw_.coin();
    add(c10::str(transposed ? "transposed " : "", "convolution of ", at::IntArrayRef(sizes), " groups ", groups,
                 " stride ", at::IntArrayRef(stride), " padding ", at::IntArrayRef(padding), " dilation ",
                 at::IntArrayRef(dilation), " extra ", at::IntArrayRef(extra)),
        [=](const at::Tensor& x, const Tensors& in) {
          return at::convolution(x, in[w], biased ? in[b] : at::Tensor(), stride, padding, dilation, transposed, extra,
                                 groups);
        });
  }

  void add_group_norm() {
    const std::int64_t groups = draw_.coin() ? 1 : x_.size(1) % 2 == 0 ? 2 : x_.size(1);
    const auto w = add_operand({x_.size(1)}), b = add_operand({x_.size(1)});
    const bool affine = draw_.coin();
    add("group_norm", [=](const at::Tensor& x, const Tensors& in) {
      return at::group_norm(x, groups, affine ? in[w] : at::Tensor(), affine ? in[b] : at::Tensor());
    });
  }

  void add_batch_norm() {
    if (x_.numel() <= 2 * x_.size(1)) return;  // one value for each channel has no variance
    const auto w = add_operand({x_.size(1)}), b = add_operand({x_.size(1)});
    add("batch_norm", [=](const at::Tensor& x, const Tensors& in) {
      return at::batch_norm(x, in[w], in[b], {}, {}, /*training=*/true, 0.1, 1e-5, /*cudnn_enabled=*/false);
    });
  }

  bool is_at_least(std::int64_t size) const {
    for (std::int64_t d = 2; d < x_.dim(); ++d) {
      if (x_.size(d) < size) return false;
    }
    return true;
  }

  void add_pooling() {
    if (!is_at_least(3) || (type_ == at::kBFloat16 && spatial_ == 3)) return;  // ATen averages no volumes in half types
    const Shape window = drawn(2, 3), stride = drawn(1, 2), padding(window.size(), 1), to = drawn(2, 3);
    const auto dims = spatial_;
    switch (draw_.integer(0, 2)) {
      case 0:
        return add("max_pool", [=](const at::Tensor& x, const Tensors&) {
          if (dims == 1) return at::max_pool1d(x, window, stride, padding);
          return dims == 2 ? at::max_pool2d(x, window, stride, padding) : at::max_pool3d(x, window, stride, padding);
        });
      case 1:
        return add("avg_pool", [=](const at::Tensor& x, const Tensors&) {
          if (dims == 1) return at::avg_pool1d(x, window, stride, padding);
          return dims == 2 ? at::avg_pool2d(x, window, stride, padding) : at::avg_pool3d(x, window, stride, padding);
        });
      default:
        return add("adaptive_avg_pool", [=](const at::Tensor& x, const Tensors&) {
          if (dims == 1) return at::adaptive_avg_pool1d(x, to);
          return dims == 2 ? at::adaptive_avg_pool2d(x, to) : at::adaptive_avg_pool3d(x, to);
        });
    }
  }

  void add_resampling() {
    if (x_.numel() > 8000) return;
    Shape sizes = x_.sizes().slice(2).vec();
    for (auto& size : sizes) size += draw_.integer(1, size);
    const auto dims = spatial_;
    const bool corners = draw_.coin();
    switch (draw_.integer(0, dims == 2 ? 2 : 0)) {  // linear gradients of the others have no form
      case 0:
        return add("nearest", [=](const at::Tensor& x, const Tensors&) {
          if (dims == 1) return at::upsample_nearest1d(x, sizes);
          return dims == 2 ? at::upsample_nearest2d(x, sizes) : at::upsample_nearest3d(x, sizes);
        });
      case 1:
        return add("bilinear",
                   [=](const at::Tensor& x, const Tensors&) { return at::upsample_bilinear2d(x, sizes, corners); });
      default:
        return add("bicubic",
                   [=](const at::Tensor& x, const Tensors&) { return at::upsample_bicubic2d(x, sizes, corners); });
    }
  }

  void add_padding() {
    if (!is_at_least(2)) return;
    Shape amounts;
    for (std::int64_t i = 0; i < 2 * spatial_; ++i) amounts.push_back(draw_.integer(0, 1));
    static const std::vector<const char*> modes{"constant", "reflect", "replicate"};
    const std::string mode = modes[static_cast<std::size_t>(draw_.integer(0, 2))];
    add(mode + " pad", [=](const at::Tensor& x, const Tensors&) { return at::pad(x, amounts, mode); });
  }

  // Of a class for each position.
  void add_loss() {
    if (type_ == at::kBFloat16) return;  // losses are not computed in half types
    auto sizes = x_.sizes().vec();
    sizes.erase(sizes.begin() + 1);
    inputs_.push_back(draw_.integers(sizes, x_.size(1)));
    const auto target = inputs_.size() - 1;
    add("cross_entropy",
        [=](const at::Tensor& x, const Tensors& in) { return x * at::cross_entropy_loss(x, in[target]); });
  }

  Draw& draw_;
  at::ScalarType type_;
  std::int64_t spatial_;
  Tensors inputs_;
  at::Tensor x_;  // result of the steps so far
  std::string text_;
  std::vector<Step> steps_;
};

}  // namespace dtensor::test
