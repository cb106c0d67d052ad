// The layers that the C interface creates by name.
#include "c/layers.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "dtensor/fully_shard.h"

namespace dtensor::c {
namespace {

using ActivationFn = at::Tensor (*)(const at::Tensor&);

struct NamedActivation {
  const char* name;
  ActivationFn apply;
};

constexpr NamedActivation kActivations[] = {{"tanh", [](const at::Tensor& x) { return at::tanh(x); }},
                                            {"relu", [](const at::Tensor& x) { return at::relu(x); }},
                                            {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
                                            {"silu", [](const at::Tensor& x) { return at::silu(x); }}};

ActivationFn activation_of(const std::string& name) {
  for (const auto& known : kActivations) {
    if (name == known.name) return known.apply;
  }
  TORCH_CHECK_VALUE(false, "expected an activation (tanh, relu, gelu or silu), got '", name, "'");
}

// Linear layers with an activation between them.
class Perceptron final : public nn::Callable<Perceptron> {
 public:
  explicit Perceptron(const LayerRequest& request) : activation_(activation_of(request.activation)) {
    for (std::size_t i = 0; i + 1 < request.sizes.size(); ++i) {
      layers_.push_back(std::make_unique<nn::Linear>(request.sizes[i], request.sizes[i + 1], true, request.options));
      register_module(std::to_string(i), *layers_.back());
    }
  }
  at::Tensor forward(const at::Tensor& x) const {
    at::Tensor y = (*layers_.front())(x);
    for (std::size_t i = 1; i < layers_.size(); ++i) y = (*layers_[i])(activation_(y));
    return y;
  }

 private:
  ActivationFn activation_;
  std::vector<std::unique_ptr<nn::Linear>> layers_;
};

// A convolution as torch.nn.Conv1d, Conv2d and Conv3d, with equal numbers for each of `spatial` dimensions.
class Conv final : public nn::Module {
 public:
  Conv(const LayerRequest& request, std::size_t spatial)
      : stride_(spatial, option(request, 3, 1)), padding_(spatial, option(request, 4, 0)), ones_(spatial, 1) {
    at::DimVector shape(spatial + 2, request.sizes[2]);
    shape[0] = request.sizes[1];
    shape[1] = request.sizes[0];
    weight_ = at::empty(shape, request.options);
    bias_ = at::empty({shape[0]}, request.options);
    register_parameter("weight", weight_);
    register_parameter("bias", bias_);
    Conv::reset_parameters();
  }
  void reset_parameters() override {
    const std::int64_t inputs = weight_.numel() / weight_.size(0);
    reset_uniform(weight_, inputs);
    reset_uniform(bias_, inputs);
  }
  at::Tensor forward(const at::Tensor& x) const {
    TORCH_CHECK_VALUE(x.dim() == weight_.dim() && x.size(1) == weight_.size(1), "expected an input [images, ",
                      weight_.size(1), ", ...] of ", weight_.dim(), " dimensions, got sizes ", x.sizes());
    return at::convolution(x, weight_, bias_, stride_, padding_, ones_, false, at::DimVector(ones_.size(), 0), 1);
  }

 private:
  static std::int64_t option(const LayerRequest& request, std::size_t at, std::int64_t by_default) {
    return at < request.sizes.size() ? request.sizes[at] : by_default;
  }

  at::DimVector stride_, padding_, ones_;
  at::Tensor weight_, bias_;
};

template <class Module, class... Arguments>
Layer layer(const Arguments&... arguments) {
  auto module = std::make_shared<Module>(arguments...);
  const auto dtype = module->parameters().front().scalar_type();
  return {module, [module, dtype](const at::Tensor& x) {
            TORCH_CHECK_VALUE(x.scalar_type() == dtype, "expected an input of ", dtype,
                              ", the dtype of the parameters, got ", x.scalar_type());
            return call(*module, x);
          }};
}

struct NamedLayer {
  const char* name;
  std::size_t least_sizes, most_sizes;
  Layer (*make)(const LayerRequest&);
};

constexpr NamedLayer kLayers[] = {
    {"Linear", 2, 2, [](const LayerRequest& r) { return layer<nn::Linear>(r.sizes[0], r.sizes[1], true, r.options); }},
    {"LayerNorm", 1, 1, [](const LayerRequest& r) { return layer<nn::LayerNorm>(r.sizes[0], 1e-5, true, r.options); }},
    {"RMSNorm", 1, 1, [](const LayerRequest& r) { return layer<nn::RMSNorm>(r.sizes[0], 1e-6, r.options); }},
    {"Perceptron", 2, 64, [](const LayerRequest& r) { return layer<Perceptron>(r); }},
    {"Conv1d", 3, 5, [](const LayerRequest& r) { return layer<Conv>(r, std::size_t{1}); }},
    {"Conv2d", 3, 5, [](const LayerRequest& r) { return layer<Conv>(r, std::size_t{2}); }},
    {"Conv3d", 3, 5, [](const LayerRequest& r) { return layer<Conv>(r, std::size_t{3}); }}};
constexpr std::size_t kPaddingOfConv = 4;  // the only size that may be 0

const NamedLayer& layer_of(const std::string& name) {
  for (const auto& known : kLayers) {
    if (name == known.name) return known;
  }
  TORCH_CHECK_VALUE(false, "expected a layer (Linear, LayerNorm, RMSNorm, Perceptron, Conv1d, Conv2d or Conv3d), got '",
                    name, "'");
}

}  // namespace

void check_layer(const LayerRequest& request) {
  const auto& known = layer_of(request.name);
  const std::size_t count = request.sizes.size();
  TORCH_CHECK_VALUE(count >= known.least_sizes && count <= known.most_sizes, "expected ", known.least_sizes, " to ",
                    known.most_sizes, " sizes of a ", known.name, ", got ", request.sizes);
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_padding = i == kPaddingOfConv && known.most_sizes == kPaddingOfConv + 1;
    TORCH_CHECK_VALUE(request.sizes[i] >= (is_padding ? 0 : 1), "expected sizes >= 1, and a padding >= 0, got ",
                      request.sizes);
  }
  TORCH_CHECK_VALUE(at::isFloatingType(c10::typeMetaToScalarType(request.options.dtype())),
                    "expected DTENSOR_FLOAT32 or DTENSOR_FLOAT64 parameters, got ", request.options.dtype());
  if (request.name == "Perceptron") {
    activation_of(request.activation);
  } else {
    TORCH_CHECK_VALUE(request.activation.empty(), "expected no activation of a ", request.name, ", got '",
                      request.activation, "'");
  }
}

Layer make_layer(const LayerRequest& request) { return layer_of(request.name).make(request); }

}  // namespace dtensor::c
