// Modules: creation on a mesh, calls, parameters and FSDP.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "c/handles.h"
#include "c/host_array.h"
#include "c/layers.h"
#include "c/status.h"
#include "dtensor/fully_shard.h"
#include "dtensor/mesh_scope.h"
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

at::Tensor forward_of(const dtensor_module* module, const dtensor_tensor* x) {
  return required(module, "module").forward(required(x, "input").tensor);
}

const auto& parameter_of(const dtensor_module* module, int index) {
  const auto& parameters = required(module, "module").parameters;
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
  return guarded(__func__, [&] {
    const auto& on = required(mesh, "mesh").mesh;
    LayerRequest request;
    agree(on.communicator(), [&] {
      required(module, "pointer for the module");
      TORCH_CHECK_VALUE(count >= 1, "expected at least 1 size, got ", count);
      request.sizes = {&required(sizes, "list of sizes"), static_cast<std::size_t>(count)};
      request.name = &required(name, "name of a layer");
      request.activation = activation == nullptr ? "" : activation;
      request.options = at::TensorOptions(scalar_type(dtype));
      check_layer(request);
      return c10::str(request.name, " ", request.sizes, " ", request.activation, " of ", scalar_type(dtype),
                      " with seed ", seed);
    });
    const SeedScope random(on, seed);
    const dtensor::MeshScope scope(on);
    auto layer = make_layer(request);
    *module = new dtensor_module{on, layer.module, layer.forward};
  });
}

void dtensor_module_free(dtensor_module* module) { delete module; }

dtensor_status dtensor_module_forward(const dtensor_module* module, const dtensor_tensor* x, dtensor_tensor** result) {
  return guarded(__func__, [&] {
    auto& made = required(result, "pointer for the result");
    made = new_tensor(forward_of(module, x));
  });
}

dtensor_status dtensor_module_forward_no_grad(const dtensor_module* module, const dtensor_tensor* x,
                                              dtensor_tensor** result) {
  const at::NoGradGuard no_grad;
  return dtensor_module_forward(module, x, result);
}

dtensor_status dtensor_module_parameter_count(const dtensor_module* module, int* count) {
  return guarded(__func__, [&] {
    required(count, "pointer for the count") = static_cast<int>(required(module, "module").parameters.size());
  });
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
  return guarded(__func__, [&] {
    auto& layer = required(module, "module");
    TORCH_CHECK_VALUE(!layer.fully_sharded, "expected a module that is not fully sharded, got one that is");
    TORCH_CHECK_VALUE(layer.mesh.ndim() <= 2, "expected a mesh of 1 or 2 dimensions, got ", layer.mesh.str());
    dtensor::FsdpOptions options;
    if (const auto& names = layer.mesh.names(); !names.empty()) {
      options.shard_axis = names.back();
      options.replicate_axis = names.front();
    }
    dtensor::fully_shard(layer.parameters, layer.mesh, options);
    layer.fully_sharded = true;
  });
}
