// A backend that does nothing, as a base class for tests.
#pragma once

#include "dtensor/comm_backend.h"

namespace dtensor::test {

class NoopBackend : public CommBackend {
 public:
  using CommBackend::CommBackend;
  const char* name() const override { return "idle"; }
  bool supports(c10::DeviceType) const override { return true; }
  Work all_gather(const CollectiveCall&, at::TensorList, const at::Tensor&) override { return {}; }
  Work reduce_scatter(const CollectiveCall&, const at::Tensor&, at::TensorList) override { return {}; }
  Work all_reduce(const CollectiveCall&, const at::Tensor&) override { return {}; }
  Work all_to_all(const CollectiveCall&, at::TensorList, at::TensorList) override { return {}; }
  Work broadcast(const CollectiveCall&, const at::Tensor&) override { return {}; }
  Work send(const CollectiveCall&, const at::Tensor&) override { return {}; }
  Work recv(const CollectiveCall&, const at::Tensor&) override { return {}; }
  void barrier(const CollectiveCall&) override {}
  std::shared_ptr<CommBackend> subgroup(at::IntArrayRef, const std::string&) override { return nullptr; }
  void abort(const std::string&) override {}
  std::string failure() override { return ""; }
};

}  // namespace dtensor::test
