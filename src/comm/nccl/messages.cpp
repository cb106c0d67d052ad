#include "comm/nccl/messages.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

#include <thread>
#include <utility>

#include "comm/nccl/error_checks.h"
#include "comm/waiting/gil_release.h"

namespace dtensor::nccl {
namespace {

constexpr std::chrono::milliseconds kIdPoll{1};
constexpr int kSender = 0, kReceiver = 1;  // ranks in the NCCL communicator

}  // namespace

MessageQueue::MessageQueue(std::shared_ptr<Device> device, CommBackend& host, std::shared_ptr<const GroupName> group,
                           const CollectiveCall& first)
    : device_(std::move(device)), group_(std::move(group)), first_(first) {
  if (sends()) check(ncclGetUniqueId(id_.get()), "ncclGetUniqueId");
  const at::Tensor bytes = at::from_blob(
      id_.get(), {sizeof *id_}, [keep = id_](void*) {}, at::kByte);
  CollectiveCall call = first_;
  call.dtype = at::kByte;
  call.sequence = host.next_sequence(call.kind);
  id_arrived_ = sends() ? host.send(call, bytes) : host.recv(call, bytes);
}

void MessageQueue::start() {
  std::thread([self = shared_from_this()] { self->connect(); }).detach();
}

Work MessageQueue::post(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) {
  auto message = std::make_shared<StreamCall>(device_, call, group_, outputs, inputs);
  const GilRelease others_may_run;  // a thread with the GIL must not wait for mutex_
  std::lock_guard lock(mutex_);
  if (comm_ != nullptr) {
    launch(*message);
  } else if (error_.empty()) {
    pending_.push_back(message);
  } else {
    message->fail(error_);
  }
  return work_of(std::move(message));
}

void MessageQueue::connect() {
  std::string error;
  try {
    const auto comm = connected();
    std::lock_guard lock(mutex_);
    comm_ = comm;
    for (const auto& message : pending_) launch(*message);
    return pending_.clear();
  } catch (...) {
    error = current_exception_text();
  }
  std::lock_guard lock(mutex_);
  error_ = error;
  for (const auto& message : pending_) message->fail(error_);
  pending_.clear();
}

// A first message connects the transports of both ends, for which NCCL blocks the calling thread.
std::shared_ptr<NcclComm> MessageQueue::connected() {
  const auto wait_for_id = [&] {  // a wait() would count as a wait of the rank's own thread
    while (!id_arrived_.done()) {
      device_->watchdog->check_ranks();
      std::this_thread::sleep_for(kIdPoll);
    }
    std::exchange(id_arrived_, Work()).wait();
  };
  if (!sends()) wait_for_id();
  auto comm = nccl::connect(device_, *id_, 2, sends() ? kSender : kReceiver, *group_);
  if (sends()) wait_for_id();
  const c10::cuda::CUDAGuard guard(device_->index);
  const c10::cuda::CUDAStreamGuard on_stream(comm->stream());
  const auto calls = device_->watchdog->enter();
  transfer(*comm, at::zeros({1}, at::TensorOptions(at::kByte).device(at::Device(at::kCUDA, device_->index))));
  return comm;
}

void MessageQueue::launch(StreamCall& call) const {
  call.launch(*comm_, [&](at::TensorList outputs, at::TensorList inputs) {
    transfer(*comm_, sends() ? inputs[0] : outputs[0]);
  });
}

void MessageQueue::transfer(const NcclComm& comm, const at::Tensor& tensor) const {
  if (tensor.numel() == 0) return;
  const auto stream = comm.stream().stream();
  if (sends()) {
    check(ncclSend(tensor.const_data_ptr(), tensor.nbytes(), ncclInt8, kReceiver, comm.get(), stream), "ncclSend");
  } else {
    check(ncclRecv(tensor.data_ptr(), tensor.nbytes(), ncclInt8, kSender, comm.get(), stream), "ncclRecv");
  }
}

}  // namespace dtensor::nccl
