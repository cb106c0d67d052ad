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
    {"Perceptron", 2, 64, [](const LayerRequest& r) { return layer<Perceptron>(r); }}};

const NamedLayer& layer_of(const std::string& name) {
  for (const auto& known : kLayers) {
    if (name == known.name) return known;
  }
  TORCH_CHECK_VALUE(false, "expected a layer (Linear, LayerNorm, RMSNorm or Perceptron), got '", name, "'");
}

}  // namespace

void check_layer(const LayerRequest& request) {
  const auto& known = layer_of(request.name);
  const std::size_t count = request.sizes.size();
  TORCH_CHECK_VALUE(count >= known.least_sizes && count <= known.most_sizes, "expected ", known.least_sizes,
                    known.most_sizes == known.least_sizes ? "" : " or more", " sizes of a ", known.name, ", got ",
                    request.sizes);
  for (const std::int64_t size : request.sizes) {
    TORCH_CHECK_VALUE(size >= 1, "expected sizes >= 1, got ", request.sizes);
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
