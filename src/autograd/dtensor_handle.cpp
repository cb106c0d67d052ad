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

// Calls `run` with the tensors.
template <class Run>
auto run_redistribute(const std::vector<DTensor>& tensors, const MeshInfo* mesh, Run&& run) {
  static const std::string name = "redistribute";
  const std::vector<at::Tensor> operands(tensors.begin(), tensors.end());
  const CollectiveTag tag([&] {
    std::vector<at::Tensor> locals;
    for (const auto& tensor : tensors) locals.push_back(tensor.defined() ? checked_impl(tensor).local() : at::Tensor());
    return locals;
  });
  return run_as_call(name, operands, mesh, [&] { return as_dtensors(run(operands)); });
}

void check_count(std::size_t placements, std::size_t tensors) {
  TORCH_CHECK(placements == tensors, "redistribute: expected placements for each of ", tensors, " tensors, got ",
              placements);
}

}  // namespace

std::vector<DTensor> redistribute(const std::vector<DTensor>& tensors, std::vector<Placements> placements) {
  return run_redistribute(tensors, nullptr, [&](const std::vector<at::Tensor>& operands) {
    check_count(placements.size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto& spec = *checked_impl(tensors[i]).spec();
      placements[i] = normalize_placements(std::move(placements[i]), tensors[i].dim(), spec.mesh->layout.shape);
    }
    return redistribute_tensors(operands, placements);
  });
}

std::vector<DTensor> redistribute(const std::vector<DTensor>& tensors, const DeviceMesh& mesh,
                                  std::vector<Placements> placements) {
  TORCH_CHECK(mesh, "redistribute: expected a mesh, got an undefined one");
  return run_redistribute(tensors, impl_of(mesh).get(), [&](const std::vector<at::Tensor>& operands) {
    check_count(placements.size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      checked_impl(tensors[i]);
      placements[i] = normalize_placements(std::move(placements[i]), tensors[i].dim(), mesh.shape());
    }
    return redistribute_tensors(operands, impl_of(mesh), placements);
  });
}

at::Tensor DTensor::to_local(Placements grad_placements) const {
  static const std::string name = "to_local";
  return run_as_call(name, *this, nullptr, [&] { return unwrap_local(*this, std::move(grad_placements)); });
}

}  // namespace dtensor
