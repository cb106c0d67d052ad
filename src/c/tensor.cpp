// Tensors over the host's memory, their properties, and copies to the host.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "c/handles.h"
#include "c/host_array.h"
#include "c/status.h"

namespace dtensor::c {
namespace {

// One placement may come without brackets.
Placements placements_of(const char* text) {
  const std::string list = &required(text, "text of placements");
  return parse_placements(list.find('[') == std::string::npos ? "[" + list + "]" : list);
}

const DTensor& tensor_of(const dtensor_tensor* handle) { return object(handle).tensor; }

// The global sizes of local parts. A tensor on the meta device has sizes and no memory. The context of an error of
// from_local names this rank's part, so it is left out: the text is the same on all ranks.
at::DimVector global_sizes(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements) {
  const at::Tensor part = at::empty(local.sizes(), local.options().device(at::kMeta));
  try {
    return at::DimVector(DTensor::from_local(part, mesh, placements).sizes());
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, error.msg(), "; for parts of other sizes use RS(dimension, size of each rank's part)");
  }
}

// The local parts of all ranks as one tensor that shares their memory.
DTensor tensor_of_parts(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements) {
  const auto sizes = global_sizes(local, mesh, placements);
  const auto strides = agree_host_strides(mesh.communicator(), local, sizes);
  return DTensor::from_local(local, mesh, placements, sizes, strides);
}

// This rank's part, which shares memory and version counter with the tensor.
at::Tensor local_of(const DTensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.to_local();
}

// Fills an array with the strides of the tensor that it describes.
void describe_local(const at::Tensor& local, dtensor_host_array& array) {
  array.dtype = dtype_of(local.scalar_type());
  array.data = local.data_ptr();
  array.ndim = static_cast<int>(local.dim());
  array.sizes = local.sizes().data();
  array.strides = local.strides().data();
}

dtensor::Placements stored_placements(const DTensor& tensor) {
  auto placements = tensor.placements();
  for (auto& placement : placements) placement = placement.as_storage(false);
  return placements;
}

void check_copy_to(const DTensor& source, const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(source.mesh().shape() == mesh.shape(), "expected meshes of equal shapes, got ",
                    source.mesh().shape(), " and ", mesh.shape());
  for (const auto& placement : source.placements()) {
    TORCH_CHECK_VALUE(!placement.is_partial(), "expected a tensor without Partial placements, got ", source.spec_str(),
                      "; redistribute it first");
  }
}

std::string describe_output(const DTensor& tensor, const dtensor_host_array* array) {
  check_host_array(required(array, "host array"));
  const at::Tensor output = view_of_host(*array);
  TORCH_CHECK_VALUE(output.sizes() == tensor.sizes() && output.scalar_type() == tensor.scalar_type(),
                    "expected an array of ", tensor.scalar_type(), " ", tensor.sizes(), ", got one of ",
                    output.scalar_type(), " ", output.sizes());
  return {};
}

}  // namespace
}  // namespace dtensor::c

using namespace dtensor::c;

dtensor_status dtensor_tensor_from_host(const dtensor_mesh* mesh, const dtensor_host_array* local,
                                        const char* placements, dtensor_tensor** tensor) {
  return guarded_on_all(__func__, {mesh}, [&] {
    const auto& on = object(mesh).mesh;
    agree(on.communicator(), [&] {
      required(tensor, "pointer for the tensor");
      check_host_array(required(local, "host array"));
      return c10::str(local->ndim, " dimensions of ", scalar_type(local->dtype), " with placements ",
                      dtensor::to_string(placements_of(placements)));
    });
    *tensor = new_tensor(tensor_of_parts(view_of_host(*local, on.device_type()), on, placements_of(placements)));
  });
}

dtensor_status dtensor_tensor_increment_version(dtensor_tensor* tensor) {
  return guarded_on_all(__func__, {tensor}, [&] { local_of(tensor_of(tensor)).unsafeGetTensorImpl()->bump_version(); });
}

void dtensor_tensor_free(dtensor_tensor* tensor) {
  guarded(__func__, [&] { free_object(tensor, Kind::tensor); });
}

dtensor_status dtensor_tensor_ndim(const dtensor_tensor* tensor, int* ndim) {
  return guarded(__func__,
                 [&] { required(ndim, "pointer for the number") = static_cast<int>(tensor_of(tensor).dim()); });
}

dtensor_status dtensor_tensor_size(const dtensor_tensor* tensor, int dim, int64_t* size) {
  return guarded(__func__, [&] {
    const auto sizes = tensor_of(tensor).sizes();
    TORCH_CHECK_VALUE(dim >= 0 && dim < static_cast<int>(sizes.size()), "expected a dimension in [0, ", sizes.size(),
                      "), got ", dim);
    required(size, "pointer for the size") = sizes[static_cast<std::size_t>(dim)];
  });
}

dtensor_status dtensor_tensor_dtype(const dtensor_tensor* tensor, dtensor_dtype* dtype) {
  return guarded(__func__,
                 [&] { required(dtype, "pointer for the dtype") = dtype_of(tensor_of(tensor).scalar_type()); });
}

dtensor_status dtensor_tensor_placements(dtensor_tensor* tensor, const char** placements) {
  return guarded(__func__, [&] {
    auto& result = required(placements, "pointer for the text");
    auto& shown = object(tensor);
    shown.placements = dtensor::to_string(shown.tensor.placements());
    result = shown.placements.c_str();
  });
}

dtensor_status dtensor_tensor_local(dtensor_tensor* tensor, dtensor_host_array* local) {
  return guarded(__func__, [&] {
    auto& result = required(local, "pointer for the host array");
    auto& shown = object(tensor);
    shown.local = local_of(shown.tensor);
    describe_local(shown.local, result);
  });
}

dtensor_status dtensor_tensor_redistribute(const dtensor_tensor* tensor, const char* placements,
                                           dtensor_tensor** result) {
  return guarded_on_all(__func__, {tensor}, [&] {
    const auto& source = tensor_of(tensor);
    dtensor::Placements wanted;
    agree(source.mesh().communicator(), [&] {
      required(result, "pointer for the tensor");
      wanted = placements_of(placements);
      return "placements " + dtensor::to_string(wanted);
    });
    *result = new_tensor(source.redistribute(wanted));
  });
}

dtensor_status dtensor_tensor_to_mesh(const dtensor_tensor* tensor, const dtensor_mesh* mesh, dtensor_tensor** result) {
  return guarded_on_all(__func__, {tensor, mesh}, [&] {
    const auto& source = tensor_of(tensor);
    const dtensor::DeviceMesh to = object(mesh).mesh;
    agree(to.communicator(), [&] {
      required(result, "pointer for the tensor");
      check_copy_to(source, to);
      return std::string();
    });
    const auto placements = stored_placements(source);
    const at::Tensor local = source.to_local(placements).to(to.device_type());
    *result = new_tensor(dtensor::DTensor::from_local(local, to, placements, source.sizes(), source.strides()));
  });
}

dtensor_status dtensor_tensor_copy_full(const dtensor_tensor* tensor, const dtensor_host_array* array) {
  return guarded_on_all(__func__, {tensor}, [&] {
    const at::NoGradGuard no_grad;
    const auto& source = tensor_of(tensor);
    agree(source.mesh().communicator(), [&] { return describe_output(source, array); });
    view_of_host(*array).copy_(source.full_tensor());
  });
}

dtensor_status dtensor_tensor_copy(dtensor_tensor* target, const dtensor_tensor* source) {
  return guarded_on_all(__func__, {target, source}, [&] {
    const at::NoGradGuard no_grad;
    const auto &to = object(target, "target").tensor, &from = object(source, "source").tensor;
    TORCH_CHECK_VALUE(to.sizes() == from.sizes(), "expected tensors of equal sizes, got a target of ", to.sizes(),
                      " and a source of ", from.sizes());
    at::Tensor(to).copy_(from);
  });
}

dtensor_status dtensor_tensor_item(const dtensor_tensor* tensor, double* value) {
  return guarded_on_all(__func__, {tensor}, [&] {
    const at::NoGradGuard no_grad;
    const auto& source = tensor_of(tensor);
    TORCH_CHECK_VALUE(source.numel() == 1, "expected a tensor with one element, got sizes ", source.sizes());
    required(value, "pointer for the value") = source.full_tensor().item<double>();
  });
}
