// Connects communicators on a thread of their own, and orders each call after the work of the caller's stream.
#include "comm/nccl/nccl_comm.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>
#include <future>
#include <thread>

#include "comm/nccl/error_checks.h"
#include "comm/nccl/staging.h"
#include "comm/waiting/gil_release.h"
#include "internal/aten_scopes.h"

namespace dtensor::nccl {
namespace {

constexpr int kHighPriority = -1;
constexpr std::chrono::milliseconds kConnectPoll{1};
constexpr std::chrono::microseconds kLaunchPoll{100};

class StreamWork final : public Work::Impl {
 public:
  explicit StreamWork(std::shared_ptr<StreamCall> call) : call_(std::move(call)) {}
  ~StreamWork() override {
    if (std::uncaught_exceptions() > 0) return;
    try {
      call_->wait();
    } catch (...) {  // the next call throws it again
    }
  }
  void wait() override { call_->wait(); }
  bool done() override { return call_->done(); }

 private:
  std::shared_ptr<StreamCall> call_;
};

}  // namespace

std::shared_ptr<const c10::cuda::CUDAStream> StreamPool::take() {
  const auto give = [pool = shared_from_this()](const c10::cuda::CUDAStream* stream) {
    std::lock_guard lock(pool->mutex_);
    pool->free_.push_back(*stream);
    delete stream;
  };
  std::lock_guard lock(mutex_);
  if (free_.empty()) {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, kHighPriority), "cudaStreamCreateWithPriority");
    free_.push_back(c10::cuda::getStreamFromExternal(stream, device_));
  }
  auto* taken = new c10::cuda::CUDAStream(free_.back());
  free_.pop_back();
  return {taken, give};
}

NcclComm::NcclComm(std::shared_ptr<Device> device, ncclComm_t comm)
    : device_(std::move(device)), comm_(comm), stream_(device_->streams->take()) {
  device_->watchdog->open(comm_);
}

NcclComm::~NcclComm() { device_->watchdog->close(comm_, stream_); }

// NCCL blocks the calling thread without a timeout, so another thread calls it. Nonblocking communicators would have
// NCCL start a thread for each later call.
std::shared_ptr<NcclComm> connect(const std::shared_ptr<Device>& device, const ncclUniqueId& id, int size, int rank,
                                  const GroupName& group) {
  struct Connected {
    ncclComm_t comm = nullptr;
    std::promise<void> end;
  };
  const auto connected = std::make_shared<Connected>();
  const c10::cuda::CUDAGuard guard(device->index);
  const GilRelease others_may_run;
  std::thread([connected, id, size, rank, index = device->index] {
    try {
      const c10::cuda::CUDAGuard guard(index);
      check(ncclCommInitRank(&connected->comm, size, id, rank), "ncclCommInitRank");
      connected->end.set_value();
    } catch (...) {
      connected->end.set_exception(std::current_exception());
    }
  }).detach();
  auto end = connected->end.get_future();
  const auto begin = std::chrono::steady_clock::now();
  while (end.wait_for(kConnectPoll) != std::future_status::ready) {
    device->watchdog->check_ranks();
    if (std::chrono::steady_clock::now() - begin > device->watchdog->timeout())
      device->watchdog->throw_timeout("ncclCommInitRank of " + describe_group(group.label, group.ranks));
  }
  end.get();
  return std::make_shared<NcclComm>(device, connected->comm);
}

StreamCall::StreamCall(std::shared_ptr<Device> device, const CollectiveCall& call,
                       std::shared_ptr<const GroupName> group, at::TensorList outputs, at::TensorList inputs,
                       std::size_t output_row, std::size_t input_row)
    : device_(std::move(device)),
      caller_(c10::cuda::getCurrentCUDAStream(device_->index)),
      outputs_(outputs.vec()),
      inputs_(inputs.vec()) {
  const LocalBelowAutogradGuard scope;
  const c10::cuda::CUDAGuard guard(device_->index);
  staged_inputs_ = staged_tensors(inputs, input_row, /*filled=*/true);
  staged_outputs_ = staged_tensors(outputs, output_row, /*filled=*/false);
  before_.emplace(device_->events);
  check(cudaEventRecord(before_->get(), caller_.stream()), "cudaEventRecord");
  operation_ = std::make_shared<Operation>(device_->events, CallDescription(call, outputs, inputs), std::move(group));
  device_->watchdog->watch(operation_);
}

StreamCall::~StreamCall() {
  if (stream_) release(*stream_);
}

void StreamCall::launch(const NcclComm& comm, Enqueue enqueue) {
  const LocalBelowAutogradGuard scope;
  const c10::cuda::CUDAGuard guard(device_->index);
  const GilRelease others_may_run;  // the first call of a communicator waits for its peers
  try {
    stream_ = comm.stream();
    operation_->comm = comm.get();
    check(cudaStreamWaitEvent(stream_->stream(), before_->get(), 0), "cudaStreamWaitEvent");
    before_.reset();
    {
      const auto calls = device_->watchdog->enter();
      enqueue(staged_outputs_, staged_inputs_);
    }
    const c10::cuda::CUDAStreamGuard on_stream(*stream_);
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (!staged_outputs_[i].is_same(outputs_[i])) outputs_[i].copy_(staged_outputs_[i]);
    }
    check(cudaEventRecord(operation_->after.get(), stream_->stream()), "cudaEventRecord");
    operation_->state = Operation::State::enqueued;
  } catch (...) {
    fail(current_exception_text());
    throw;
  }
}

void StreamCall::fail(const std::string& error) {
  error_ = error;
  operation_->state = Operation::State::failed;
}

void StreamCall::wait_until_launched() const {
  if (operation_->state != Operation::State::waiting) return;
  const GilRelease others_may_run;
  while (operation_->state == Operation::State::waiting) {
    device_->watchdog->check();
    std::this_thread::sleep_for(kLaunchPoll);
  }
}

void StreamCall::wait() {
  device_->watchdog->check();
  wait_until_launched();
  if (operation_->state == Operation::State::failed) throw CommError(error_);
  const auto current = c10::cuda::getCurrentCUDAStream(device_->index);
  check(cudaStreamWaitEvent(current.stream(), operation_->after.get(), 0), "cudaStreamWaitEvent");
  release(current);
}

bool StreamCall::done() {
  const auto state = operation_->state.load();
  if (device_->watchdog->failed() || state == Operation::State::failed) return true;
  try {
    return state == Operation::State::enqueued && operation_->after.is_complete();
  } catch (const CommError&) {  // which the watchdog reports
    return true;
  }
}

// Memory returns to the stream on which it was allocated, the caller's. If that does not wait for the call, the
// allocator must.
void StreamCall::release(const c10::cuda::CUDAStream& ready) {
  std::vector<at::Tensor> lists[4];  // freed without the lock
  {
    std::lock_guard lock(mutex_);
    std::size_t i = 0;
    for (auto* list : {&outputs_, &inputs_, &staged_outputs_, &staged_inputs_}) lists[i++].swap(*list);
  }
  if (ready == caller_) return;
  for (const auto& list : lists) {
    for (const at::Tensor& t : list) {
      if (t.numel() > 0) c10::cuda::CUDACachingAllocator::recordStream(t.storage().data_ptr(), *stream_);
    }
  }
}

Work work_of(std::shared_ptr<StreamCall> call) { return Work(std::make_shared<StreamWork>(std::move(call))); }

}  // namespace dtensor::nccl
