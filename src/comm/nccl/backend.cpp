// Collectives run on a separate CUDA stream, which waits for the work that the caller has queued. Work::wait makes the
// caller's stream wait for it; the host does not block. recordStream keeps the memory from being reused early. CPU
// tensors (hashes, colors) are staged on the device; they are ready when the call returns.
#include "comm/nccl/backend.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>
#include <thread>

#include "comm/composite/reduce_by_exchange.h"
#include "comm/error_messages.h"
#include "comm/nccl/error_checks.h"
#include "comm/nccl/staging.h"
#include "comm/nccl/types.h"
#include "comm/nccl/watchdog.h"
#include "comm/waiting/gil_release.h"
#include "internal/aten_scopes.h"

namespace dtensor::nccl {
namespace {

// Shared by the communicators of this rank.
struct Device {
  Communicator cpu;
  int index;
  Watchdog* watchdog;  // never destroyed
};

class StreamWork final : public Work::Impl {
 public:
  StreamWork(std::shared_ptr<Event> event, const Device& device)
      : event_(std::move(event)), device_(device.index), watchdog_(device.watchdog) {}
  void wait() override {
    watchdog_->check();
    const auto stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_));
    check(cudaStreamWaitEvent(stream.stream(), event_->get(), 0), "cudaStreamWaitEvent");
  }
  bool done() override {
    watchdog_->check();
    return event_->is_complete();
  }

 private:
  std::shared_ptr<Event> event_;
  int device_;
  Watchdog* watchdog_;
};

// The NCCL id of a new communicator of these world ranks. The first member creates it and sends it to the others.
ncclUniqueId shared_id(const Communicator& cpu, const std::vector<std::int64_t>& members) {
  constexpr int kTag = kMessageTags - 1;
  ncclUniqueId id{};
  const at::Tensor bytes = at::from_blob(&id, {sizeof id}, at::kByte);
  if (cpu.rank() != members[0]) {
    cpu.recv(bytes, static_cast<int>(members[0]), kTag).wait();
    return id;
  }
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  for (std::size_t i = 1; i < members.size(); ++i) cpu.send(bytes, static_cast<int>(members[i]), kTag).wait();
  return id;
}

bool on_cpu(at::TensorList list) {
  bool any = false, all = true;
  for (const auto& t : list) (t.is_cpu() ? any : all) = t.is_cpu();
  TORCH_CHECK(!any || all, "nccl: tensors on the CPU and on a GPU in one call");
  return any;
}

class NcclBackend final : public CommBackend {
 public:
  NcclBackend(std::shared_ptr<Device> device, std::vector<std::int64_t> ranks, int me, std::string label)
      : CommBackend(me, std::move(ranks)),
        device_(std::move(device)),
        label_(std::move(label)),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, static_cast<c10::DeviceIndex>(device_->index))) {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_->index));
    const GilRelease others_may_run;
    check(ncclCommInitRank(&comm_, size(), shared_id(device_->cpu, this->ranks()), rank()), "ncclCommInitRank");
    device_->watchdog->open(comm_);
  }

  // close() defers the abort of the NCCL communicator while its work is running.
  ~NcclBackend() override { device_->watchdog->close(comm_); }

  const char* name() const override { return "nccl"; }
  bool asynchronous() const override { return true; }
  bool supports(c10::DeviceType device) const override {
    return device == c10::DeviceType::CUDA || device == c10::DeviceType::CPU;
  }

  Work all_gather(const CollectiveCall& call, at::TensorList outputs, const at::Tensor& input) override {
    const auto adjacent = have_equal_numel(outputs) ? Adjacent::outputs : Adjacent::none;
    const auto enqueue = [&](at::TensorList out, at::TensorList in) {
      if (adjacent == Adjacent::none) return send_recv_pairs(out, [&](int) { return in[0]; });
      check(ncclAllGather(in[0].const_data_ptr(), out[0].data_ptr(), in[0].nbytes(), ncclInt8, comm_, stream()),
            "ncclAllGather");
    };
    return run(call, outputs, input, enqueue, adjacent);
  }

  Work all_to_all(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    return run(call, outputs, inputs,
               [&](at::TensorList out, at::TensorList in) { send_recv_pairs(out, [&](int i) { return in[i]; }); });
  }

  Work reduce_scatter(const CollectiveCall& call, const at::Tensor& output, at::TensorList inputs) override {
    if (!supports_reduction(call.dtype, call.op))
      return reduce_scatter_via_all_to_all(*this, call, output, inputs, device()), Work();
    const Reduction r = nccl_reduction(call.dtype, call.op);
    const auto adjacent = have_equal_numel(inputs) ? Adjacent::inputs : Adjacent::none;
    const auto enqueue = [&](at::TensorList out, at::TensorList in) {
      if (adjacent == Adjacent::inputs) {
        return check(ncclReduceScatter(in[0].const_data_ptr(), out[0].data_ptr(), out[0].numel() * r.count, r.type,
                                       r.op, comm_, stream()),
                     "ncclReduceScatter");
      }
      check(ncclGroupStart(), "ncclGroupStart");
      for (int i = 0; i < size(); ++i) {
        void* target = i == rank() ? out[0].data_ptr() : nullptr;
        check(ncclReduce(in[i].const_data_ptr(), target, in[i].numel() * r.count, r.type, r.op, i, comm_, stream()),
              "ncclReduce");
      }
      check(ncclGroupEnd(), "ncclGroupEnd");
    };
    return run(call, output, inputs, enqueue, adjacent);
  }

  Work all_reduce(const CollectiveCall& call, const at::Tensor& tensor) override {
    if (!supports_reduction(call.dtype, call.op))
      return all_reduce_via_all_to_all(*this, call, tensor, device()), Work();
    const Reduction r = nccl_reduction(call.dtype, call.op);
    return run(call, tensor, tensor, [&](at::TensorList out, at::TensorList in) {
      check(ncclAllReduce(in[0].const_data_ptr(), out[0].data_ptr(), in[0].numel() * r.count, r.type, r.op, comm_,
                          stream()),
            "ncclAllReduce");
    });
  }

  Work broadcast(const CollectiveCall& call, const at::Tensor& tensor) override {
    return run(call, tensor, tensor, [&](at::TensorList out, at::TensorList in) {
      check(ncclBroadcast(in[0].const_data_ptr(), out[0].data_ptr(), in[0].nbytes(), ncclInt8, call.peer, comm_,
                          stream()),
            "ncclBroadcast");
    });
  }

  // NCCL requires the send and receive of a message to the same rank in one group, so a send stores it until the
  // receive.
  Work send(const CollectiveCall& call, const at::Tensor& tensor) override {
    if (call.peer == rank()) {
      return run(call, {}, tensor, [&](at::TensorList, at::TensorList in) {
        const c10::cuda::CUDAStreamGuard on_ours(stream_);
        to_self_.push_back(in[0].clone());
      });
    }
    return run(call, {}, tensor, [&](at::TensorList, at::TensorList in) {
      check(ncclSend(in[0].const_data_ptr(), in[0].nbytes(), ncclInt8, call.peer, comm_, stream()), "ncclSend");
    });
  }

  Work recv(const CollectiveCall& call, const at::Tensor& tensor) override {
    if (call.peer == rank()) {
      TORCH_CHECK(!to_self_.empty(), "nccl: expected a send before the receive of a message from this rank to itself");
      const at::Tensor message = to_self_.front();
      TORCH_CHECK(message.sizes() == tensor.sizes() && message.scalar_type() == tensor.scalar_type(),
                  "nccl: expected an output of ", message.scalar_type(), ' ', message.sizes(), ", got ",
                  tensor.scalar_type(), ' ', tensor.sizes());
      to_self_.pop_front();
      return run(call, tensor, {}, [&](at::TensorList out, at::TensorList) {
        const c10::cuda::CUDAStreamGuard on_ours(stream_);
        out[0].copy_(message);
      });
    }
    return run(call, tensor, {}, [&](at::TensorList out, at::TensorList) {
      check(ncclRecv(out[0].data_ptr(), out[0].nbytes(), ncclInt8, call.peer, comm_, stream()), "ncclRecv");
    });
  }

  // The only call that blocks the host, besides those with CPU tensors.
  void barrier(const CollectiveCall& call) override {
    const NoMeshScopeGuard regular;
    const at::Tensor one = at::ones({1}, at::TensorOptions().dtype(at::kInt).device(device()));
    CollectiveCall as_sum = call;
    as_sum.dtype = at::kInt;
    Work work = all_reduce(as_sum, one);
    const GilRelease others_may_run;
    while (!work.done()) std::this_thread::yield();
  }

  std::shared_ptr<CommBackend> subgroup(at::IntArrayRef members, const std::string& label) override {
    std::vector<std::int64_t> world_ranks;
    for (auto m : members) world_ranks.push_back(ranks()[m]);
    const auto me = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
    return std::make_shared<NcclBackend>(device_, std::move(world_ranks), me, label);
  }

  void abort(const std::string& reason) override {
    const std::string text = "rank " + std::to_string(ranks()[rank()]) + " aborted: " + reason;
    device_->cpu.abort(text);
    device_->watchdog->fail(text);
  }
  std::string failure() override { return backend_of(device_->cpu)->failure(); }

 private:
  // Which list of tensors NCCL requires in one contiguous buffer.
  enum class Adjacent : std::uint8_t { none, outputs, inputs };

  c10::Device device() const { return {c10::kCUDA, static_cast<c10::DeviceIndex>(device_->index)}; }
  cudaStream_t stream() const { return stream_.stream(); }

  template <class GiveTo>
  void send_recv_pairs(at::TensorList out, GiveTo&& give_to) {
    check(ncclGroupStart(), "ncclGroupStart");
    for (int i = 0; i < size(); ++i) {
      const at::Tensor give = give_to(i);
      if (give.numel() > 0)
        check(ncclSend(give.const_data_ptr(), give.nbytes(), ncclInt8, i, comm_, stream()), "ncclSend");
      if (out[i].numel() > 0)
        check(ncclRecv(out[i].data_ptr(), out[i].nbytes(), ncclInt8, i, comm_, stream()), "ncclRecv");
    }
    check(ncclGroupEnd(), "ncclGroupEnd");
  }

  void uses(at::TensorList list) const {
    for (const auto& t : list) {
      if (t.numel() > 0) c10::cuda::CUDACachingAllocator::recordStream(t.storage().data_ptr(), stream_);
    }
  }

  // Packs, enqueues `enqueue(outputs, inputs)` after the caller's stream, and unpacks.
  template <class Enqueue>
  Work run(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs, const Enqueue& enqueue,
           Adjacent adjacent = Adjacent::none) {
    const LocalBelowAutogradGuard scope;
    const c10::cuda::CUDAGuard guard(device());
    const bool cpu = on_cpu(outputs.empty() ? inputs : outputs);
    const auto in = staged_tensors(inputs, device(), /*filled=*/true, adjacent == Adjacent::inputs);
    const auto out = staged_tensors(outputs, device(), /*filled=*/false, adjacent == Adjacent::outputs);
    Event before;
    check(cudaEventRecord(before.get(), c10::cuda::getCurrentCUDAStream(device().index()).stream()), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream(), before.get(), 0), "cudaStreamWaitEvent");
    {
      const auto calls = device_->watchdog->enter();
      enqueue(out, in);
    }
    uses(in);
    uses(out);
    {
      const c10::cuda::CUDAStreamGuard on_ours(stream_);
      std::optional<GilRelease> others_may_run;
      if (cpu) others_may_run.emplace();
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (!out[i].is_same(outputs[i])) outputs[i].copy_(out[i]);  // blocks if the target is on the CPU
      }
      if (!cpu) uses(outputs);
    }
    auto after = std::make_shared<Event>();
    check(cudaEventRecord(after->get(), stream()), "cudaEventRecord");
    const std::string where =
        describe(call, outputs, inputs) + " on " + describe_group(call.label ? *call.label : label_, ranks());
    device_->watchdog->watch(after, comm_, where);
    return Work(std::make_shared<StreamWork>(std::move(after), *device_));
  }

  std::shared_ptr<Device> device_;
  std::string label_;
  c10::cuda::CUDAStream stream_;
  ncclComm_t comm_ = nullptr;
  std::deque<at::Tensor> to_self_;
};

}  // namespace

std::shared_ptr<CommBackend> make_world_backend(const Communicator& cpu, int device, RunOptions options) {
  check(cudaSetDevice(device), "cudaSetDevice");
  std::vector<std::int64_t> ranks(cpu.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  auto shared = std::make_shared<Device>(Device{cpu, device, new Watchdog(cpu, options.timeout)});
  auto backend = std::make_shared<NcclBackend>(std::move(shared), std::move(ranks), cpu.rank(), "");
  backend->set_record(backend_of(cpu)->shared_record());
  return backend;
}

}  // namespace dtensor::nccl
