// A backend that passes copies on one device to another backend, which cannot access the memory of the caller's device.
#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "comm/composite/chained_work.h"
#include "dtensor/comm_backend.h"
#include "internal/aten_scopes.h"
#include "internal/ranks/staged_communicator.h"

namespace dtensor {
namespace {

using Tensors = std::vector<at::Tensor>;

class StagedBackend final : public CommBackend {
 public:
  StagedBackend(std::shared_ptr<CommBackend> inner, c10::Device device)
      : CommBackend(inner->rank(), inner->ranks()), inner_(std::move(inner)), device_(device) {
    set_record(inner_->shared_record());
  }

  const char* name() const override { return inner_->name(); }
  bool supports(c10::DeviceType device) const override {
    return device != c10::DeviceType::Meta && c10::impl::hasDeviceGuardImpl(device);
  }
  void report_failed_call(const std::string& error) override { inner_->report_failed_call(error); }

  Work all_gather(const CollectiveCall& call, at::TensorList outputs, const at::Tensor& input) override {
    return write(outputs, [&](at::TensorList out) { return inner_->all_gather(call, out, copied(input)); });
  }
  Work reduce_scatter(const CollectiveCall& call, const at::Tensor& output, at::TensorList inputs) override {
    return write(output, [&](at::TensorList out) { return inner_->reduce_scatter(call, out[0], copied(inputs)); });
  }
  Work all_reduce(const CollectiveCall& call, const at::Tensor& tensor) override {
    return change(tensor, [&](at::TensorList out) { return inner_->all_reduce(call, out[0]); });
  }
  Work all_reduce(const CollectiveCall& call, const at::Tensor& output, const at::Tensor& input) override {
    return write(output, [&](at::TensorList out) { return inner_->all_reduce(call, out[0], copied(input)); });
  }
  Work all_to_all(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    return write(outputs, [&](at::TensorList out) { return inner_->all_to_all(call, out, copied(inputs)); });
  }
  Work all_gather_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    return write(outputs, [&](at::TensorList out) { return inner_->all_gather_list(call, out, copied(inputs)); });
  }
  Work reduce_scatter_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    return write(outputs, [&](at::TensorList out) { return inner_->reduce_scatter_list(call, out, copied(inputs)); });
  }
  Work all_reduce_list(const CollectiveCall& call, at::TensorList tensors) override {
    return change(tensors, [&](at::TensorList out) { return inner_->all_reduce_list(call, out); });
  }
  Work broadcast(const CollectiveCall& call, const at::Tensor& tensor) override {
    return change(tensor, [&](at::TensorList out) { return inner_->broadcast(call, out[0]); });
  }
  Work send(const CollectiveCall& call, const at::Tensor& tensor) override {
    return inner_->send(call, copied(tensor));
  }
  Work recv(const CollectiveCall& call, const at::Tensor& tensor) override {
    const at::Tensor received = uninitialized(tensor);
    return with_continuation(
        inner_->recv(call, received), [=] { copy_back({tensor}, {received}); }, shared_record());
  }
  void barrier(const CollectiveCall& call) override { inner_->barrier(call); }

  std::shared_ptr<CommBackend> subgroup(at::IntArrayRef members, const std::string& label) override {
    return std::make_shared<StagedBackend>(inner_->subgroup(members, label), device_);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  std::string failure() override { return inner_->failure(); }
  std::shared_ptr<void> send_heartbeats() override { return inner_->send_heartbeats(); }

 private:
  // Memory on the device with equal strides; the tensor itself if it is there.
  at::Tensor uninitialized(const at::Tensor& t) const {
    if (t.device().type() == device_.type()) return t;
    const LocalBelowAutogradGuard regular;
    return at::empty_strided(t.sizes(), t.strides(), t.options().device(device_));
  }
  at::Tensor copied(const at::Tensor& t) const {
    at::Tensor copy = uninitialized(t);
    copy_back({copy}, {t});
    return copy;
  }
  Tensors copied(at::TensorList list) const {
    Tensors copies;
    for (const at::Tensor& t : list) copies.push_back(copied(t));
    return copies;
  }
  static void copy_back(const Tensors& to, const Tensors& from) {
    const LocalBelowAutogradGuard regular;
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (!to[i].is_same(from[i])) to[i].copy_(from[i]);
    }
  }

  // Runs a call on `staged` and copies its results to the caller's tensors.
  template <class Call>
  static Work finish(at::TensorList outputs, const Tensors& staged, const Call& call) {
    call(at::TensorList(staged)).wait();
    copy_back(outputs.vec(), staged);
    return {};
  }
  template <class Call>
  Work write(at::TensorList outputs, const Call& call) const {
    Tensors staged;
    for (const at::Tensor& t : outputs) staged.push_back(uninitialized(t));
    return finish(outputs, staged, call);
  }
  template <class Call>
  Work change(at::TensorList tensors, const Call& call) const {
    return finish(tensors, copied(tensors), call);
  }

  std::shared_ptr<CommBackend> inner_;
  c10::Device device_;
};

}  // namespace

Communicator staged_communicator(const Communicator& ranks, c10::Device through) {
  return Communicator(std::make_shared<StagedBackend>(backend_of(ranks), through));
}

}  // namespace dtensor
