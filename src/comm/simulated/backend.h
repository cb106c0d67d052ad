// Communicators of a dry run: one rank without peers. Collectives return at once. Tensors without values need no work;
// real ones get the values that they would have if all peers sent what this rank sends. If all members run
// (simulate_all_members), they exchange their real tensors as thread ranks.
#pragma once

#include "dtensor/comm_backend.h"

namespace dtensor {

class SimulatedWorld;

class SimulatedBackend final : public CommBackend {
 public:
  SimulatedBackend(int rank, std::vector<std::int64_t> ranks, std::shared_ptr<SimulatedWorld> world)
      : CommBackend(rank, std::move(ranks)), world_(std::move(world)) {}
  const char* name() const override { return "simulated"; }
  bool supports(c10::DeviceType device) const override { return device == c10::kCPU; }
  bool asynchronous() const override { return asynchronous_; }
  void set_asynchronous(bool asynchronous) { asynchronous_ = asynchronous; }
  // Whether calls allocate the buffers that processes copy through.
  void set_staging(bool staging) { staging_ = staging; }

  Work all_gather(const CollectiveCall& call, at::TensorList outputs, const at::Tensor& input) override;
  Work reduce_scatter(const CollectiveCall& call, const at::Tensor& output, at::TensorList inputs) override;
  Work all_reduce(const CollectiveCall& call, const at::Tensor& tensor) override;
  Work all_reduce(const CollectiveCall& call, const at::Tensor& output, const at::Tensor& input) override;
  Work all_to_all(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override;
  Work all_gather_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override;
  Work reduce_scatter_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override;
  Work all_reduce_list(const CollectiveCall& call, at::TensorList tensors) override;
  Work broadcast(const CollectiveCall& call, const at::Tensor& tensor) override;
  Work send(const CollectiveCall& call, const at::Tensor& tensor) override;
  Work recv(const CollectiveCall& call, const at::Tensor& tensor) override;
  void barrier(const CollectiveCall& call) override;

  std::shared_ptr<CommBackend> subgroup(at::IntArrayRef members, const std::string& label) override;
  // Starts the members that do not run yet. From now on, calls are those of thread ranks.
  void run_all_members();
  void abort(const std::string& reason) override { reason_ = reason; }
  std::string failure() override { return reason_; }

 private:
  void stage(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) const;
  void sum_equal(const CollectiveCall& call, const at::Tensor& tensor) const;

  std::shared_ptr<SimulatedWorld> world_;
  std::shared_ptr<CommBackend> threads_;  // if all members run
  std::string reason_;
  bool asynchronous_ = false, staging_ = false;
};

}  // namespace dtensor
