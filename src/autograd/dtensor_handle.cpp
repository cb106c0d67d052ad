// The DTensor handle: its accessors and redistribution.
#include "autograd/conversion_nodes.h"
#include "dtensor/events.h"
#include "dtensor/tensor.h"
#include "placement/shard_map.h"
#include "tensor/impl/call_error.h"

namespace dtensor {

const DTensorImpl& checked_impl(const at::Tensor& tensor) {
  auto* impl = dtensor_or_null(tensor);
  TORCH_CHECK(impl != nullptr, "an undefined DTensor has no mesh, placements or local tensor");
  return *impl;
}

bool is_dtensor(const at::Tensor& tensor) { return tensor.defined() && dtensor_or_null(tensor) != nullptr; }

DTensor::DTensor(at::Tensor tensor) : at::Tensor(std::move(tensor)) {
  TORCH_CHECK(!defined() || dtensor_or_null(*this) != nullptr, "expected a DTensor, got a regular ", toString(),
              " of sizes ", sizes(), "; use distribute_tensor or DTensor::from_local");
}

DeviceMesh DTensor::mesh() const {
  const auto& mesh = checked_impl(*this).spec()->mesh;
  return DeviceMesh(c10::intrusive_ptr<MeshImpl>::reclaim_copy(const_cast<MeshImpl*>(&as_mesh_impl(*mesh))));
}

const Placements& DTensor::placements() const { return checked_impl(*this).spec()->placements; }

std::uint64_t DTensor::generation() const { return checked_impl(*this).generation(); }

std::string DTensor::spec_str() const { return checked_impl(*this).spec()->str(); }

DTensor DTensor::redistribute(Placements placements) const {
  return dtensor::redistribute({*this}, {std::move(placements)})[0];
}

DTensor DTensor::redistribute(const DeviceMesh& mesh, Placements placements) const {
  return dtensor::redistribute({*this}, mesh, {std::move(placements)})[0];
}

namespace {

std::vector<DTensor> as_dtensors(std::vector<at::Tensor> tensors) {
  std::vector<DTensor> results;
  for (auto& tensor : tensors) results.emplace_back(std::move(tensor));
  return results;
}

// As run_as_call, for a list of tensors.
template <class Run>
auto run_redistribute(const std::vector<DTensor>& tensors, const MeshInfo* mesh, Run&& run) {
  static const std::string name = "redistribute";
  const CallerScope caller(name);
  const DisableDispatchModesGuard hidden;
  const CollectiveTag of([&] {
    std::vector<at::Tensor> locals;
    for (const auto& tensor : tensors) locals.push_back(tensor.defined() ? checked_impl(tensor).local() : at::Tensor());
    return locals;
  });
  try {
    return run();
  } catch (...) {
    std::vector<c10::TensorImpl*> impls;
    for (const auto& tensor : tensors) impls.push_back(tensor.defined() ? tensor.unsafeGetTensorImpl() : nullptr);
    rethrow_with_call(name, impls, mesh);
  }
}

void check_count(std::size_t placements, std::size_t tensors) {
  TORCH_CHECK(placements == tensors, "redistribute: expected placements for each of ", tensors, " tensors, got ",
              placements);
}

}  // namespace

std::vector<DTensor> redistribute(const std::vector<DTensor>& tensors, std::vector<Placements> placements) {
  return run_redistribute(tensors, nullptr, [&] {
    check_count(placements.size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto& spec = *checked_impl(tensors[i]).spec();
      placements[i] = normalize_placements(std::move(placements[i]), tensors[i].dim(), spec.mesh->layout.shape);
    }
    return as_dtensors(redistribute_tensors({tensors.begin(), tensors.end()}, placements));
  });
}

std::vector<DTensor> redistribute(const std::vector<DTensor>& tensors, const DeviceMesh& mesh,
                                  std::vector<Placements> placements) {
  TORCH_CHECK(mesh, "redistribute: expected a mesh, got an undefined one");
  return run_redistribute(tensors, impl_of(mesh).get(), [&] {
    check_count(placements.size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      checked_impl(tensors[i]);
      placements[i] = normalize_placements(std::move(placements[i]), tensors[i].dim(), mesh.shape());
    }
    return as_dtensors(redistribute_tensors({tensors.begin(), tensors.end()}, impl_of(mesh), placements));
  });
}

at::Tensor DTensor::to_local(Placements grad_placements) const {
  static const std::string name = "to_local";
  return run_as_call(name, *this, nullptr, [&] { return unwrap_local(*this, std::move(grad_placements)); });
}

}  // namespace dtensor
