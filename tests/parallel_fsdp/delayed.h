// A backend whose collectives run as late as possible: when they are waited for. Results are NaN before, so tests
// detect early reads and inputs that are freed too early.
#pragma once

#include <limits>

#include "dtensor/comm_backend.h"
#include "support/ranks.h"

namespace dtensor::test {

// The order of this thread's collectives: "all_reduce starts", "all_reduce ends". Null if they are not recorded.
inline thread_local std::vector<std::string>* delayed_log = nullptr;
inline void note(const std::string& what) {
  if (delayed_log != nullptr) delayed_log->push_back(what);
}

// Number of this thread's next collectives that throw when they are waited for.
inline thread_local int delayed_failures = 0;

// Number of communicators that this thread has made of others.
inline thread_local int delayed_subgroups = 0;

class LateWork final : public Work::Impl {
 public:
  explicit LateWork(std::function<void()> run) : run_(std::move(run)) {}
  ~LateWork() override {
    if (run_) run_();
  }
  void wait() override {
    if (!run_) return;
    const auto run = std::exchange(run_, {});
    const bool fails = delayed_failures > 0;
    if (fails) --delayed_failures;
    TORCH_CHECK(!fails, "injected failure of a collective");
    run();
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

  Work all_gather(const CollectiveCall& call, at::TensorList outputs, const at::Tensor& input) override {
    return late(call, outputs, input, [](const auto& c, auto& out, auto& in) { c.all_gather(out, in[0]).wait(); });
  }
  Work reduce_scatter(const CollectiveCall& call, const at::Tensor& output, at::TensorList inputs) override {
    const auto op = call.op;
    return late(call, output, inputs,
                [op](const auto& c, auto& out, auto& in) { c.reduce_scatter(out[0], in, op).wait(); });
  }
  Work all_reduce(const CollectiveCall& call, const at::Tensor& tensor) override {
    const auto op = call.op;
    const at::AutoDispatchBelowADInplaceOrView below;
    return late(call, tensor, tensor.clone(),
                [op](const auto& c, auto& out, auto& in) { c.all_reduce(out[0], in[0], op).wait(); });
  }
  Work all_to_all(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    return late(call, outputs, inputs, [](const auto& c, auto& out, auto& in) { c.all_to_all(out, in).wait(); });
  }
  Work broadcast(const CollectiveCall& call, const at::Tensor& tensor) override {
    return inner_.broadcast(tensor, call.peer);
  }
  Work send(const CollectiveCall& call, const at::Tensor& t) override { return inner_.send(t, call.peer, call.tag); }
  Work recv(const CollectiveCall& call, const at::Tensor& t) override { return inner_.recv(t, call.peer, call.tag); }
  void barrier(const CollectiveCall&) override { inner_.barrier(); }
  std::shared_ptr<CommBackend> subgroup(at::IntArrayRef members, const std::string& label) override {
    ++delayed_subgroups;
    return std::make_shared<DelayedBackend>(inner_.subgroup(members, label));
  }
  void abort(const std::string& reason) override { inner_.abort(reason); }
  std::string failure() override { return backend_of(inner_)->failure(); }

 private:
  template <class Run>
  Work late(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs, Run&& run) {
    const std::string name = to_string(call.kind);
    note(name + " starts");
    for (const auto& t : outputs) {
      if (at::isFloatingType(t.scalar_type())) t.fill_(std::numeric_limits<double>::quiet_NaN());
    }
    return Work(std::make_shared<LateWork>([inner = inner_, out = outputs.vec(), in = inputs.vec(), run, name] {
      run(inner, out, in), note(name + " ends");
    }));
  }

  Communicator inner_;
};

inline Communicator delayed(const Communicator& world) { return Communicator(std::make_shared<DelayedBackend>(world)); }

}  // namespace dtensor::test
