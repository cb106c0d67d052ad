// Collectives on a stream of their own: it waits for what the caller has queued, NCCL's kernels run there, and
// Work::wait makes the caller's stream wait for them; the host never does. Memory is kept from reuse by telling the
// allocator which stream uses it. CPU tensors (hashes, colours) go by way of the device and are there when the call
// returns.
#include "comm/nccl/backend.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <numeric>
#include <thread>

#include "comm/describe.h"
#include "comm/nccl/check.h"
#include "comm/nccl/types.h"
#include "comm/nccl/watchdog.h"

namespace dtensor::nccl {
namespace {

// What this rank's communicators share.
struct Device {
  std::shared_ptr<IdExchange> ids;
  int index;
  Watchdog* watchdog;  // lives as long as the process
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
    return event_->passed();
  }

 private:
  std::shared_ptr<Event> event_;
  int device_;
  Watchdog* watchdog_;
};

bool adjacent(at::TensorList list) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_contiguous() || list[i].numel() != list[0].numel()) return false;
    if (i > 0 &&
        static_cast<char*>(list[i].data_ptr()) != static_cast<char*>(list[i - 1].data_ptr()) + list[i].nbytes()) {
      return false;
    }
  }
  return true;
}

bool on_cpu(at::TensorList list) {
  bool any = false, all = true;
  for (const auto& t : list) (t.is_cpu() ? any : all) = t.is_cpu();
  TORCH_CHECK(!any || all, "nccl: tensors on the CPU and on a GPU in one call");
  return any;
}

class NcclBackend final : public CommBackend {
 public:
  NcclBackend(std::shared_ptr<Device> device, std::vector<std::int64_t> ranks, int me, const std::string& key,
              std::string label)
      : CommBackend(me, std::move(ranks)),
        device_(std::move(device)),
        key_(key),
        label_(std::move(label)),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, static_cast<c10::DeviceIndex>(device_->index))) {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_->index));
    ncclUniqueId id{};
    if (me == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    device_->ids->share(&id, sizeof id, this->ranks(), key);
    check(ncclCommInitRank(&comm_, size(), id, rank()), "ncclCommInitRank");
    device_->watchdog->open(comm_);
  }

  // A Work of this communicator may still run: it outlives this object.
  ~NcclBackend() override { device_->watchdog->close(comm_); }

  const char* name() const override { return "nccl"; }
  bool asynchronous() const override { return true; }
  // Rounds at every hop.
  at::ScalarType accumulates_in(at::ScalarType dtype) const override { return dtype; }
  bool supports(c10::DeviceType device) const override {
    return device == c10::DeviceType::CUDA || device == c10::DeviceType::CPU;
  }

  Work all_gather(const CollectiveCall& call, at::TensorList outputs, const at::Tensor& input) override {
    return run(call, outputs, input, [&](at::TensorList out, at::TensorList in) {
      if (adjacent(out)) {
        return check(
            ncclAllGather(in[0].const_data_ptr(), out[0].data_ptr(), in[0].nbytes(), ncclInt8, comm_, stream()),
            "ncclAllGather");
      }
      pairwise(out, [&](int) { return in[0]; });
    });
  }

  Work all_to_all(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    return run(call, outputs, inputs,
               [&](at::TensorList out, at::TensorList in) { pairwise(out, [&](int i) { return in[i]; }); });
  }

  Work reduce_scatter(const CollectiveCall& call, const at::Tensor& output, at::TensorList inputs) override {
    const Reduction r = nccl_reduction(call.dtype, call.op);
    return run(call, output, inputs, [&](at::TensorList out, at::TensorList in) {
      if (adjacent(in)) {
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
    });
  }

  Work all_reduce(const CollectiveCall& call, const at::Tensor& tensor) override {
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

  Work send(const CollectiveCall& call, const at::Tensor& tensor) override {
    return run(call, {}, tensor, [&](at::TensorList, at::TensorList in) {
      check(ncclSend(in[0].const_data_ptr(), in[0].nbytes(), ncclInt8, call.peer, comm_, stream()), "ncclSend");
    });
  }

  Work recv(const CollectiveCall& call, const at::Tensor& tensor) override {
    return run(call, tensor, {}, [&](at::TensorList out, at::TensorList) {
      check(ncclRecv(out[0].data_ptr(), out[0].nbytes(), ncclInt8, call.peer, comm_, stream()), "ncclRecv");
    });
  }

  // The only call for which the host waits, besides those with CPU tensors.
  void barrier(const CollectiveCall& call) override {
    const at::Tensor one = at::ones({1}, at::TensorOptions().dtype(at::kInt).device(device()));
    CollectiveCall as_sum = call;
    as_sum.dtype = at::kInt;
    Work work = all_reduce(as_sum, one);
    while (!work.done()) std::this_thread::yield();
  }

  std::shared_ptr<CommBackend> subgroup(at::IntArrayRef members, const std::string& label) override {
    const std::vector<std::int64_t> list = members.vec();
    std::string key = key_ + "/" + describe_group("", list) + "#" + std::to_string(made_[list]++);
    std::vector<std::int64_t> world_ranks;
    for (auto m : list) world_ranks.push_back(ranks()[m]);
    const auto me = static_cast<int>(std::find(list.begin(), list.end(), rank()) - list.begin());
    return std::make_shared<NcclBackend>(device_, std::move(world_ranks), me, key, label);
  }

  void abort(const std::string& reason) override {
    const std::string text = "rank " + std::to_string(ranks()[rank()]) + " aborted: " + reason;
    device_->ids->abort(text);
    device_->watchdog->fail(text);
  }
  std::string failure() override { return device_->ids->failure(); }

 private:
  c10::Device device() const { return {c10::kCUDA, static_cast<c10::DeviceIndex>(device_->index)}; }
  cudaStream_t stream() const { return stream_.stream(); }

  template <class GiveTo>
  void pairwise(at::TensorList out, GiveTo&& give_to) {
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

  // Contiguous tensors on the device for `list`: its own where they are, else copies (packed where `filled`).
  std::vector<at::Tensor> staged(at::TensorList list, bool filled) const {
    std::vector<at::Tensor> out;
    for (const auto& t : list) {
      const bool as_is = t.is_cuda() && t.is_contiguous() && !t.is_conj() && !t.is_neg();
      out.push_back(as_is ? t : at::empty(t.sizes(), t.options().device(device())));
      if (!as_is && filled) out.back().copy_(t);
    }
    return out;
  }

  void uses(at::TensorList list) const {
    for (const auto& t : list) {
      if (t.numel() > 0) c10::cuda::CUDACachingAllocator::recordStream(t.storage().data_ptr(), stream_);
    }
  }

  // Packs, queues `enqueue(outputs, inputs)` behind the caller's stream, unpacks.
  template <class Enqueue>
  Work run(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs, Enqueue&& enqueue) {
    at::AutoDispatchBelowADInplaceOrView below;
    const c10::cuda::CUDAGuard guard(device());
    const bool cpu = on_cpu(outputs.empty() ? inputs : outputs);
    const auto in = staged(inputs, true);
    const auto out = staged(outputs, false);
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
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (!out[i].is_same(outputs[i])) outputs[i].copy_(out[i]);  // waits where it goes to the CPU
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
  std::string key_, label_;
  c10::cuda::CUDAStream stream_;
  ncclComm_t comm_ = nullptr;
  std::map<std::vector<std::int64_t>, int> made_;
};

}  // namespace

std::shared_ptr<CommBackend> make_world_backend(std::shared_ptr<IdExchange> ids, int rank, int size, int device,
                                                RunOptions options, std::shared_ptr<RankRecord> record) {
  check(cudaSetDevice(device), "cudaSetDevice");
  std::vector<std::int64_t> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  auto* watchdog = new Watchdog(rank, options.timeout, ids, record);
  auto shared = std::make_shared<Device>(Device{std::move(ids), device, watchdog});
  auto backend = std::make_shared<NcclBackend>(std::move(shared), std::move(ranks), rank, "world", "");
  backend->set_record(std::move(record));
  return backend;
}

}  // namespace dtensor::nccl
