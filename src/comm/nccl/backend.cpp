// Collectives and messages of GPU tensors go over NCCL, those of CPU tensors (hashes, headers, colors) over the CPU
// communicator, where they wait for nothing that is queued on the GPU.
#include "comm/nccl/backend.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <tuple>

#include "comm/composite/reduce_by_exchange.h"
#include "comm/nccl/error_checks.h"
#include "comm/nccl/messages.h"
#include "comm/nccl/nccl_comm.h"
#include "comm/nccl/staging.h"
#include "comm/nccl/types.h"
#include "internal/aten_scopes.h"

namespace dtensor::nccl {
namespace {

// Reorders a list of n tensors for each member: all members' first tensors, all second ones, ...
std::vector<at::Tensor> by_tensor(at::TensorList list, std::size_t n) {
  std::vector<at::Tensor> out;
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = k; i < list.size(); i += n) out.push_back(list[i]);
  }
  return out;
}

class Grouped {
 public:
  Grouped() { check(ncclGroupStart(), "ncclGroupStart"); }
  void end() { open_ = false, check(ncclGroupEnd(), "ncclGroupEnd"); }
  ~Grouped() {
    if (open_) ncclGroupEnd();
  }

 private:
  bool open_ = true;
};

class NcclBackend final : public CommBackend {
 public:
  // `host` has the same members.
  NcclBackend(std::shared_ptr<Device> device, std::shared_ptr<CommBackend> host, const std::string& label)
      : CommBackend(host->rank(), host->ranks()),
        device_(std::move(device)),
        host_(std::move(host)),
        group_(std::make_shared<GroupName>(GroupName{label, ranks()})) {}

  const char* name() const override { return "nccl"; }
  bool asynchronous() const override { return true; }
  bool supports(c10::DeviceType device) const override {
    return device == c10::DeviceType::CUDA || device == c10::DeviceType::CPU;
  }

  Work all_gather(const CollectiveCall& call, at::TensorList outputs, const at::Tensor& input) override {
    return all_gather_list(call, outputs, input);
  }

  Work all_gather_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    if (inputs[0].is_cpu()) return host_->all_gather_list(on_host(call), outputs, inputs);
    const auto n = static_cast<std::size_t>(size());
    return run(call, by_tensor(outputs, inputs.size()), inputs, n, 1, [&](at::TensorList out, at::TensorList in) {
      for (std::size_t k = 0; k < in.size(); ++k) {
        const auto of_all = out.slice(k * n, n);
        if (have_equal_numel(of_all)) {
          check(ncclAllGather(in[k].const_data_ptr(), of_all[0].data_ptr(), in[k].nbytes(), ncclInt8, nccl(), stream()),
                "ncclAllGather");
        } else {
          send_recv_pairs(of_all, [&](int) { return in[k]; });
        }
      }
    });
  }

  Work all_to_all(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    if (inputs[0].is_cpu()) return host_->all_to_all(on_host(call), outputs, inputs);
    return run(call, outputs, inputs, 1, 1,
               [&](at::TensorList out, at::TensorList in) { send_recv_pairs(out, [&](int i) { return in[i]; }); });
  }

  Work reduce_scatter(const CollectiveCall& call, const at::Tensor& output, at::TensorList inputs) override {
    if (output.is_cpu()) return host_->reduce_scatter(on_host(call), output, inputs);
    if (supports_reduction(call.dtype, call.op)) return reduce_scatter_list(call, output, inputs);
    return reduce_scatter_via_all_to_all(*this, call, output, inputs, output.device()), Work();
  }

  Work reduce_scatter_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    if (outputs[0].is_cpu()) return host_->reduce_scatter_list(on_host(call), outputs, inputs);
    if (!supports_reduction(call.dtype, call.op)) return CommBackend::reduce_scatter_list(call, outputs, inputs);
    const Reduction r = nccl_reduction(call.dtype, call.op);
    const auto n = static_cast<std::size_t>(size());
    return run(call, outputs, by_tensor(inputs, outputs.size()), 1, n, [&](at::TensorList out, at::TensorList in) {
      for (std::size_t k = 0; k < out.size(); ++k) reduce_parts(r, out[k], in.slice(k * n, n));
    });
  }

  Work all_reduce(const CollectiveCall& call, const at::Tensor& tensor) override {
    if (tensor.is_cpu()) return host_->all_reduce(on_host(call), tensor);
    if (supports_reduction(call.dtype, call.op)) return all_reduce_all(call, tensor, tensor);
    return all_reduce_via_all_to_all(*this, call, tensor, tensor.device()), Work();
  }

  Work all_reduce(const CollectiveCall& call, const at::Tensor& output, const at::Tensor& input) override {
    if (output.is_cpu()) return host_->all_reduce(on_host(call), output, input);
    if (supports_reduction(call.dtype, call.op)) return all_reduce_all(call, output, input);
    return CommBackend::all_reduce(call, output, input);
  }

  Work all_reduce_list(const CollectiveCall& call, at::TensorList tensors) override {
    if (tensors[0].is_cpu()) return host_->all_reduce_list(on_host(call), tensors);
    if (supports_reduction(call.dtype, call.op)) return all_reduce_all(call, tensors, tensors);
    return CommBackend::all_reduce_list(call, tensors);
  }

  Work broadcast(const CollectiveCall& call, const at::Tensor& tensor) override {
    if (tensor.is_cpu()) return host_->broadcast(on_host(call), tensor);
    return run(call, tensor, tensor, 1, 1, [&](at::TensorList out, at::TensorList in) {
      check(ncclBroadcast(in[0].const_data_ptr(), out[0].data_ptr(), in[0].nbytes(), ncclInt8, call.peer, nccl(),
                          stream()),
            "ncclBroadcast");
    });
  }

  Work send(const CollectiveCall& call, const at::Tensor& tensor) override {
    if (tensor.is_cpu()) return host_->send(on_host(call), tensor);
    if (call.peer == rank()) return send_to_self(call.tag, tensor);
    if (tensor.numel() == 0) return {};
    return messages(call).post(call, {}, tensor);
  }

  Work recv(const CollectiveCall& call, const at::Tensor& tensor) override {
    if (tensor.is_cpu()) return host_->recv(on_host(call), tensor);
    if (call.peer == rank()) return recv_from_self(call.tag, tensor);
    if (tensor.numel() == 0) return {};
    return messages(call).post(call, tensor, {});
  }

  void barrier(const CollectiveCall& call) override { host_->barrier(on_host(call)); }

  std::shared_ptr<CommBackend> subgroup(at::IntArrayRef members, const std::string& label) override {
    auto host = host_->subgroup(members, label);
    host->set_record(shared_record());
    return std::make_shared<NcclBackend>(device_, std::move(host), label);
  }

  void abort(const std::string& reason) override {
    const std::string text = "rank " + std::to_string(ranks()[rank()]) + " aborted: " + reason;
    host_->abort(reason);
    device_->watchdog->fail(text);
  }
  std::string failure() override { return host_->failure(); }
  std::shared_ptr<void> send_heartbeats() override { return host_->send_heartbeats(); }

 private:
  struct MessageToSelf {
    MessageToSelf(at::Tensor values, const std::shared_ptr<EventPool>& events, c10::cuda::CUDAStream from)
        : tensor(std::move(values)), ready(events), stream(from) {}
    at::Tensor tensor;
    Event ready;
    c10::cuda::CUDAStream stream;
  };

  // The calls of `host_` have their own numbers.
  CollectiveCall on_host(CollectiveCall call) const {
    call.sequence = host_->next_sequence(call.kind);
    return call;
  }

  ncclComm_t nccl() const { return comm_->get(); }
  cudaStream_t stream() const { return comm_->stream().stream(); }

  template <class GiveTo>
  void send_recv_pairs(at::TensorList out, GiveTo&& give_to) {
    for (int i = 0; i < size(); ++i) {
      const at::Tensor give = give_to(i);
      if (give.numel() > 0)
        check(ncclSend(give.const_data_ptr(), give.nbytes(), ncclInt8, i, nccl(), stream()), "ncclSend");
      if (out[i].numel() > 0)
        check(ncclRecv(out[i].data_ptr(), out[i].nbytes(), ncclInt8, i, nccl(), stream()), "ncclRecv");
    }
  }

  void reduce_parts(const Reduction& r, const at::Tensor& output, at::TensorList of_all) {
    if (have_equal_numel(of_all)) {
      return check(ncclReduceScatter(of_all[0].const_data_ptr(), output.data_ptr(), output.numel() * r.count, r.type,
                                     r.op, nccl(), stream()),
                   "ncclReduceScatter");
    }
    for (int i = 0; i < size(); ++i) {
      void* target = i == rank() ? output.data_ptr() : nullptr;
      check(ncclReduce(of_all[i].const_data_ptr(), target, of_all[i].numel() * r.count, r.type, r.op, i, nccl(),
                       stream()),
            "ncclReduce");
    }
  }

  Work all_reduce_all(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) {
    const Reduction r = nccl_reduction(call.dtype, call.op);
    return run(call, outputs, inputs, 1, 1, [&](at::TensorList out, at::TensorList in) {
      for (std::size_t k = 0; k < in.size(); ++k) {
        check(ncclAllReduce(in[k].const_data_ptr(), out[k].data_ptr(), in[k].numel() * r.count, r.type, r.op, nccl(),
                            stream()),
              "ncclAllReduce");
      }
    });
  }

  // NCCL requires both ends of a message of a rank to itself in one group, so the message is stored until the receive.
  Work send_to_self(int tag, const at::Tensor& tensor) {
    const LocalBelowAutogradGuard scope;
    const c10::cuda::CUDAGuard guard(device_->index);
    const auto stream = c10::cuda::getCurrentCUDAStream(device_->index);
    auto& message = to_self_[tag].emplace_back(tensor.clone(), device_->events, stream);
    check(cudaEventRecord(message.ready.get(), stream.stream()), "cudaEventRecord");
    return {};
  }

  Work recv_from_self(int tag, const at::Tensor& tensor) {
    auto& sent = to_self_[tag];
    TORCH_CHECK(!sent.empty(), "nccl: expected a send before the receive of a message from this rank to itself");
    const auto& message = sent.front();
    TORCH_CHECK(message.tensor.sizes() == tensor.sizes() && message.tensor.scalar_type() == tensor.scalar_type(),
                "nccl: expected an output of ", message.tensor.scalar_type(), ' ', message.tensor.sizes(), ", got ",
                tensor.scalar_type(), ' ', tensor.sizes());
    const LocalBelowAutogradGuard scope;
    const c10::cuda::CUDAGuard guard(device_->index);
    const auto stream = c10::cuda::getCurrentCUDAStream(device_->index);
    check(cudaStreamWaitEvent(stream.stream(), message.ready.get(), 0), "cudaStreamWaitEvent");
    tensor.copy_(message.tensor);
    if (stream != message.stream && tensor.numel() > 0)
      c10::cuda::CUDACachingAllocator::recordStream(message.tensor.storage().data_ptr(), stream);
    sent.pop_front();
    return {};
  }

  MessageQueue& messages(const CollectiveCall& call) {
    auto& queue = messages_[{call.kind == CollectiveKind::send, call.peer, call.tag}];
    if (queue == nullptr) {
      queue = std::make_shared<MessageQueue>(device_, *host_, group_, call);
      queue->start();
    }
    return *queue;
  }

  // The first collective on the GPU creates the NCCL communicator: every member makes that call. The first member
  // creates the id.
  void connect_once() {
    if (comm_ != nullptr) return;
    ncclUniqueId id{};
    if (rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    CollectiveCall call;
    call.kind = CollectiveKind::broadcast;
    call.peer = 0;
    host_->broadcast(on_host(call), at::from_blob(&id, {sizeof id}, at::kByte)).wait();
    comm_ = connect(device_, id, size(), rank(), *group_);
  }

  // Stages the tensors (staging.h), and calls enqueue(outputs, inputs) in a group of NCCL calls.
  template <class Enqueue>
  Work run(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs, std::size_t output_row,
           std::size_t input_row, const Enqueue& enqueue) {
    connect_once();
    auto work = std::make_shared<StreamCall>(device_, call, group_, outputs, inputs, output_row, input_row);
    work->launch(*comm_, [&](at::TensorList out, at::TensorList in) {
      Grouped calls;
      enqueue(out, in);
      calls.end();
    });
    return work_of(std::move(work));
  }

  std::shared_ptr<Device> device_;
  std::shared_ptr<CommBackend> host_;
  std::shared_ptr<const GroupName> group_;
  std::shared_ptr<NcclComm> comm_;                                                // null before the first collective
  std::map<std::tuple<bool, int, int>, std::shared_ptr<MessageQueue>> messages_;  // by direction, peer and tag
  std::map<int, std::deque<MessageToSelf>> to_self_;                              // by tag
};

}  // namespace

std::shared_ptr<CommBackend> make_world_backend(const Communicator& cpu, int device, RunOptions options) {
  check(cudaSetDevice(device), "cudaSetDevice");
  std::vector<std::int64_t> ranks(cpu.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  auto shared = std::make_shared<Device>(
      Device{static_cast<c10::DeviceIndex>(device), WatchdogPtr(new Watchdog(cpu, options.timeout))});
  const auto host = backend_of(cpu.subgroup(ranks));
  auto backend = std::make_shared<NcclBackend>(std::move(shared), host, "");
  backend->set_record(backend_of(cpu)->shared_record());
  return backend;
}

void run_on_own_stream(int device, const std::function<void()>& body) {
  const auto stream = std::make_shared<StreamPool>(static_cast<c10::DeviceIndex>(device))->take();
  const c10::cuda::CUDAStreamGuard guard(*stream);
  body();
}

}  // namespace dtensor::nccl
