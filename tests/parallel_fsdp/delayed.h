// A backend whose collectives run in the background, as late as they may: when they are waited for. Until then results
// are NaN, so that whoever reads them early, or lets go of what was to be read, is found out.
#pragma once

#include <limits>

#include "dtensor/comm_backend.h"
#include "support/ranks.h"

namespace dtensor::test {

class LateWork final : public Work::Impl {
 public:
  explicit LateWork(std::function<void()> run) : run_(std::move(run)) {}
  ~LateWork() override {
    if (run_) run_();
  }
  void wait() override {
    if (run_) std::exchange(run_, {})();
  }
  bool done() override { return !run_; }

 private:
  std::function<void()> run_;
};

class DelayedBackend final : public CommBackend {
 public:
  explicit DelayedBackend(Communicator inner) : CommBackend(inner.rank(), inner.ranks()), inner_(std::move(inner)) {}
  const char* name() const override { return "delayed"; }
  bool supports(c10::DeviceType device) const override { return device == c10::kCPU; }
  bool asynchronous() const override { return true; }

  Work all_gather(const CollectiveCall&, at::TensorList outputs, const at::Tensor& input) override {
    return late(outputs, input, [](const auto& c, auto& out, auto& in) { c.all_gather(out, in[0]).wait(); });
  }
  Work reduce_scatter(const CollectiveCall& call, const at::Tensor& output, at::TensorList inputs) override {
    const auto op = call.op;
    return late(output, inputs, [op](const auto& c, auto& out, auto& in) { c.reduce_scatter(out[0], in, op).wait(); });
  }
  Work all_reduce(const CollectiveCall& call, const at::Tensor& tensor) override {
    return inner_.all_reduce(tensor, call.op);
  }
  Work all_to_all(const CollectiveCall&, at::TensorList outputs, at::TensorList inputs) override {
    return late(outputs, inputs, [](const auto& c, auto& out, auto& in) { c.all_to_all(out, in).wait(); });
  }
  Work broadcast(const CollectiveCall& call, const at::Tensor& tensor) override {
    return inner_.broadcast(tensor, call.peer);
  }
  Work send(const CollectiveCall& call, const at::Tensor& t) override { return inner_.send(t, call.peer, call.tag); }
  Work recv(const CollectiveCall& call, const at::Tensor& t) override { return inner_.recv(t, call.peer, call.tag); }
  void barrier(const CollectiveCall&) override { inner_.barrier(); }
  std::shared_ptr<CommBackend> subgroup(at::IntArrayRef members, const std::string& label) override {
    return std::make_shared<DelayedBackend>(inner_.subgroup(members, label));
  }
  void abort(const std::string& reason) override { inner_.abort(reason); }

 private:
  template <class Run>
  Work late(at::TensorList outputs, at::TensorList inputs, Run&& run) {
    for (const auto& t : outputs) {
      if (at::isFloatingType(t.scalar_type())) t.fill_(std::numeric_limits<double>::quiet_NaN());
    }
    return Work(std::make_shared<LateWork>(
        [inner = inner_, out = outputs.vec(), in = inputs.vec(), run] { run(inner, out, in); }));
  }

  Communicator inner_;
};

inline Communicator delayed(const Communicator& world) { return Communicator(std::make_shared<DelayedBackend>(world)); }

}  // namespace dtensor::test
