// Connects the two ends of a message queue on a thread of its own; messages that are posted before wait for it.
#include "comm/nccl/messages.h"

#include <ATen/ATen.h>

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
    // The first message connects the transports of both ends, for which NCCL blocks this thread.
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
  return comm;
}

void MessageQueue::launch(StreamCall& message) const {
  const auto stream = comm_->stream().stream();
  message.launch(*comm_, [&](at::TensorList outputs, at::TensorList inputs) {
    if (sends()) {
      check(ncclSend(inputs[0].const_data_ptr(), inputs[0].nbytes(), ncclInt8, kReceiver, comm_->get(), stream),
            "ncclSend");
    } else {
      check(ncclRecv(outputs[0].data_ptr(), outputs[0].nbytes(), ncclInt8, kSender, comm_->get(), stream), "ncclRecv");
    }
  });
}

}  // namespace dtensor::nccl
