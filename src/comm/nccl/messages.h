// Point-to-point messages. The messages of one sender, receiver and tag have their own NCCL communicator and stream, so
// that a message waits for no other. Operations of one NCCL communicator run in order: two ranks that first send to
// each other would wait forever.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/nccl/nccl_comm.h"

namespace dtensor::nccl {

class MessageQueue : public std::enable_shared_from_this<MessageQueue> {
 public:
  // `host` moves CPU tensors between the same ranks. `first` is the first message: its direction, peer and tag are
  // those of the queue. The sender's id is sent over `host`, so both ends create the queue at the same message.
  MessageQueue(std::shared_ptr<Device> device, CommBackend& host, std::shared_ptr<const GroupName> group,
               const CollectiveCall& first);
  // Connects in the background: the host waits neither for the peer nor for its first message.
  void start();
  // Not for empty tensors.
  Work post(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs);

 private:
  bool sends() const { return first_.kind == CollectiveKind::send; }
  void connect();
  std::shared_ptr<NcclComm> connected();
  void launch(StreamCall& message) const;

  std::shared_ptr<Device> device_;
  std::shared_ptr<const GroupName> group_;
  CollectiveCall first_;
  std::shared_ptr<ncclUniqueId> id_ = std::make_shared<ncclUniqueId>();
  Work id_arrived_;
  std::mutex mutex_;
  std::shared_ptr<NcclComm> comm_;  // null until it is connected
  std::string error_;               // why it could not be connected
  std::vector<std::shared_ptr<StreamCall>> pending_;
};

}  // namespace dtensor::nccl
