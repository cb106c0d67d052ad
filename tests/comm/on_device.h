// A backend that accepts CPU tensors and passes copies on a device to another backend. Tests that know only the CPU
// thus test the device backend.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <utility>
#include <vector>

#include "dtensor/comm_backend.h"
#include "internal/aten_scopes.h"

namespace dtensor::test {

class OnDevice final : public CommBackend {
 public:
  OnDevice(std::shared_ptr<CommBackend> inner, c10::Device device)
      : CommBackend(inner->rank(), inner->ranks()), inner_(std::move(inner)), device_(device) {
    set_record(inner_->shared_record());
  }

  const char* name() const override { return inner_->name(); }
  bool supports(c10::DeviceType device) const override { return device == c10::kCPU; }

  Work all_gather(const CollectiveCall& call, at::TensorList outputs, const at::Tensor& input) override {
    return ends(outputs, [&](at::TensorList out) { return inner_->all_gather(call, out, there(input)); });
  }
  Work reduce_scatter(const CollectiveCall& call, const at::Tensor& output, at::TensorList inputs) override {
    return ends(output,
                [&](at::TensorList out) { return inner_->reduce_scatter(call, out[0], on_device_list(inputs)); });
  }
  Work all_reduce(const CollectiveCall& call, const at::Tensor& tensor) override {
    return ends(tensor, [&](at::TensorList out) { return inner_->all_reduce(call, out[0]); });
  }
  Work all_reduce(const CollectiveCall& call, const at::Tensor& output, const at::Tensor& input) override {
    return ends(output, [&](at::TensorList out) { return inner_->all_reduce(call, out[0], there(input)); });
  }
  Work all_to_all(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    return ends(outputs, [&](at::TensorList out) { return inner_->all_to_all(call, out, on_device_list(inputs)); });
  }
  Work all_gather_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    return ends(outputs,
                [&](at::TensorList out) { return inner_->all_gather_list(call, out, on_device_list(inputs)); });
  }
  Work reduce_scatter_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    return ends(outputs,
                [&](at::TensorList out) { return inner_->reduce_scatter_list(call, out, on_device_list(inputs)); });
  }
  Work all_reduce_list(const CollectiveCall& call, at::TensorList tensors) override {
    return ends(tensors, [&](at::TensorList out) { return inner_->all_reduce_list(call, out); });
  }
  Work broadcast(const CollectiveCall& call, const at::Tensor& tensor) override {
    return ends(tensor, [&](at::TensorList out) { return inner_->broadcast(call, out[0]); });
  }
  Work send(const CollectiveCall& call, const at::Tensor& tensor) override {
    return started({}, {there(tensor)}, [&](at::TensorList in) { return inner_->send(call, in[0]); });
  }
  Work recv(const CollectiveCall& call, const at::Tensor& tensor) override {
    return started({tensor}, {there(tensor)}, [&](at::TensorList out) { return inner_->recv(call, out[0]); });
  }
  void barrier(const CollectiveCall& call) override { inner_->barrier(call); }

  std::shared_ptr<CommBackend> subgroup(at::IntArrayRef members, const std::string& label) override {
    return std::make_shared<OnDevice>(inner_->subgroup(members, label), device_);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  std::string failure() override { return inner_->failure(); }

 private:
  using Tensors = std::vector<at::Tensor>;

  // Copies a tensor to the device, with equal strides.
  at::Tensor there(const at::Tensor& t) const {
    const LocalBelowAutogradGuard regular;
    return at::empty_strided(t.sizes(), t.strides(), t.options().device(device_)).copy_(t);
  }
  Tensors on_device_list(at::TensorList list) const {
    Tensors copies;
    for (const at::Tensor& t : list) copies.push_back(there(t));
    return copies;
  }

  // Waits, then copies the received values to the caller's tensors.
  struct Started final : Work::Impl {
    Tensors to, from;
    Work work;
    void wait() override {
      work.wait();
      const LocalBelowAutogradGuard regular;
      for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
      to.clear();
    }
    bool done() override { return work.done(); }
  };

  template <class Call>
  static Work started(Tensors to, Tensors from, const Call& call) {
    auto pending = std::make_shared<Started>();
    pending->work = call(from);
    pending->to = std::move(to), pending->from = std::move(from);
    return Work(std::move(pending));
  }
  template <class Call>
  Work ends(at::TensorList outputs, const Call& call) const {
    Work work = started(outputs.vec(), on_device_list(outputs), call);
    work.wait();
    return {};
  }

  std::shared_ptr<CommBackend> inner_;
  c10::Device device_;
};

// A communicator with the ranks of `world` whose tensors are sent through `device`.
inline Communicator on_device(const Communicator& world, c10::Device device) {
  return Communicator(std::make_shared<OnDevice>(backend_of(world), device));
}

}  // namespace dtensor::test
