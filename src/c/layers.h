// Layers by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "dtensor/nn.h"

namespace dtensor::c {

struct LayerRequest {
  std::string name;
  at::IntArrayRef sizes;
  std::string activation;
  at::TensorOptions options;
};

// What the C interface needs of a layer, whose type it does not know.
struct Layer {
  std::shared_ptr<nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
};

// Throws c10::ValueError if make_layer() would refuse the request.
void check_layer(const LayerRequest& request);
// Creates the layer with the initial values of torch.nn.
Layer make_layer(const LayerRequest& request);

}  // namespace dtensor::c
