// Modules: creation on a mesh, calls, parameters and FSDP.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "c/handles.h"
#include "c/host_array.h"
#include "c/layers.h"
#include "c/status.h"
#include "dtensor/fully_shard.h"
#include "dtensor/optim/clip.h"
#include "dtensor/random.h"
#include "dtensor/tensor.h"

namespace dtensor::c {
namespace {

// Restores the random number state of the mesh's world, so that a module does not change numbers drawn later.
class SeedScope {
 public:
  SeedScope(const DeviceMesh& mesh, std::uint64_t seed) : mesh_(mesh), before_(get_rng_state(mesh)) {
    manual_seed(mesh, seed);
  }
  ~SeedScope() { set_rng_state(mesh_, before_); }
  SeedScope(const SeedScope&) = delete;
  SeedScope& operator=(const SeedScope&) = delete;

 private:
  DeviceMesh mesh_;
  RngState before_;
};

// A layer takes one tensor and returns one.
ForwardFn forward_of(const Layer& layer) {
  return [layer](const TensorVector& inputs) -> TensorVector {
    TORCH_CHECK_VALUE(inputs.size() == 1, "expected 1 input of a layer, got ", inputs.size());
    return {layer.forward(inputs[0])};
  };
}

// Writes the results after all of them are made.
void forward(const dtensor_module* module, const TensorVector& inputs, int count, dtensor_tensor** results) {
  const TensorVector made = object(module).forward(inputs);
  TORCH_CHECK_VALUE(static_cast<int>(made.size()) == count, "expected a module that returns ", count,
                    " tensors, got one that returns ", made.size());
  std::transform(made.begin(), made.end(), results, [](const at::Tensor& tensor) { return new_tensor(tensor); });
}

dtensor_status forward_one(const char* caller, const dtensor_module* module, const dtensor_tensor* x,
                           dtensor_tensor** result) {
  return guarded_on_all(caller, {module, x}, [&] {
    required(result, "pointer for the result");
    forward(module, {object(x, "input").tensor}, 1, result);
  });
}

// The value of a regular tensor or DTensor.
double value_of(const at::Tensor& number) {
  return (is_dtensor(number) ? DTensor(number).full_tensor() : number).item<double>();
}

const auto& parameter_of(const dtensor_module* module, int index) {
  const auto& parameters = object(module).parameters;
  TORCH_CHECK_VALUE(index >= 0 && index < static_cast<int>(parameters.size()), "expected a parameter in [0, ",
                    parameters.size(), "), got ", index);
  return parameters[static_cast<std::size_t>(index)];
}

}  // namespace
}  // namespace dtensor::c

using namespace dtensor::c;

dtensor_status dtensor_module_create(const dtensor_mesh* mesh, const char* name, int count, const int64_t* sizes,
                                     const char* activation, dtensor_dtype dtype, uint64_t seed,
                                     dtensor_module** module) {
  return guarded_on_all(__func__, {mesh}, [&] {
    const auto& on = object(mesh).mesh;
    LayerRequest request;
    agree(on.communicator(), [&] {
      required(module, "pointer for the module");
      TORCH_CHECK_VALUE(count >= 1 && count <= 64, "expected 1 to 64 sizes, got ", count);
      request.sizes = {&required(sizes, "list of sizes"), static_cast<std::size_t>(count)};
      request.name = &required(name, "name of a layer");
      request.activation = activation == nullptr ? "" : activation;
      request.options = at::TensorOptions(scalar_type(dtype)).device(on.device_type());
      check_layer(request);
      return c10::str(request.name, " ", request.sizes, " ", request.activation, " of ", scalar_type(dtype),
                      " with seed ", seed);
    });
    const SeedScope random(on, seed);
    const dtensor::MeshScope scope(on);
    auto layer = make_layer(request);
    *module = new_handle<dtensor_module>(
        Module{on, layer.module, forward_of(layer), [layer](bool on) { layer.module->train(on); }});
  });
}

void dtensor_module_free(dtensor_module* module) {
  guarded(__func__, [&] { free_object(module, Kind::module); });
}

dtensor_status dtensor_module_forward(const dtensor_module* module, const dtensor_tensor* x, dtensor_tensor** result) {
  return forward_one(__func__, module, x, result);
}

dtensor_status dtensor_module_forward_no_grad(const dtensor_module* module, const dtensor_tensor* x,
                                              dtensor_tensor** result) {
  const at::NoGradGuard no_grad;
  return forward_one(__func__, module, x, result);
}

dtensor_status dtensor_module_forward_list(const dtensor_module* module, int input_count,
                                           const dtensor_tensor* const* inputs, int result_count,
                                           dtensor_tensor** results, int record) {
  return guarded_on_all(__func__, {module}, [&] {
    const at::AutoGradMode mode(record != 0);
    TORCH_CHECK_VALUE(result_count >= 1 && result_count <= kMaxTensors, "expected 1 to ", kMaxTensors, " results, got ",
                      result_count);
    required(results, "list of results");
    forward(module, tensors_of(input_count, inputs, "input"), result_count, results);
  });
}

dtensor_status dtensor_module_train(dtensor_module* module, int on) {
  return guarded_on_all(__func__, {module}, [&] {
    const auto& changed = object(module);
    agree_on_switch(changed.mesh.communicator(), on);
    changed.train(on == 1);
  });
}

dtensor_status dtensor_module_clip_grad_norm(const dtensor_module* module, double max_norm, double* norm) {
  return guarded_on_all(__func__, {module}, [&] {
    const auto& clipped = object(module);
    agree(clipped.mesh.communicator(), [&] {
      TORCH_CHECK_VALUE(max_norm > 0, "expected a norm > 0, got ", max_norm);
      return "norm " + digits(max_norm);
    });
    TensorVector parameters;
    for (const auto& [name, parameter] : clipped.parameters) parameters.push_back(*parameter);
    const at::Tensor before = dtensor::clip_grad_norm_(parameters, max_norm);
    if (norm != nullptr) *norm = before.defined() ? value_of(before) : 0;
  });
}

dtensor_status dtensor_module_parameter_count(const dtensor_module* module, int* count) {
  return guarded(
      __func__, [&] { required(count, "pointer for the count") = static_cast<int>(object(module).parameters.size()); });
}

dtensor_status dtensor_module_parameter_name(const dtensor_module* module, int index, const char** name) {
  return guarded(__func__, [&] { required(name, "pointer for the name") = parameter_of(module, index).first.c_str(); });
}

dtensor_status dtensor_module_parameter(const dtensor_module* module, int index, dtensor_tensor** parameter) {
  return guarded(__func__, [&] {
    auto& made = required(parameter, "pointer for the parameter");
    made = new_tensor(*parameter_of(module, index).second);
  });
}

dtensor_status dtensor_module_fully_shard(dtensor_module* module) {
  return guarded_on_all(__func__, {module}, [&] {
    auto& layer = object(module);
    TORCH_CHECK_VALUE(!layer.fully_sharded, "expected a module that is not fully sharded, got one that is");
    TORCH_CHECK_VALUE(layer.mesh.ndim() <= 2, "expected a mesh of 1 or 2 dimensions, got ", layer.mesh.str());
    dtensor::FsdpOptions options;
    if (const auto& names = layer.mesh.names(); !names.empty()) {
      options.shard_axes = {names.back()};
      options.replicate_axis = names.front();
    }
    dtensor::fully_shard(layer.parameters, layer.mesh, options);
    layer.fully_sharded = true;
  });
}
