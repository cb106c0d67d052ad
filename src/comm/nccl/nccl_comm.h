// An NCCL communicator with its own CUDA stream, and the calls on it. The stream waits for the work that the caller has
// queued. Work::wait makes the caller's stream wait for the call; the host does not block.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/FunctionRef.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/nccl/watchdog.h"

namespace dtensor::nccl {

// Streams of this rank's communicators. c10's pool has 32 streams per device: communicators would share them,
// differently on each rank. Streams are used again and never destroyed, because c10's allocator may refer to them.
class StreamPool : public std::enable_shared_from_this<StreamPool> {
 public:
  explicit StreamPool(c10::DeviceIndex device) : device_(device) {}
  std::shared_ptr<const c10::cuda::CUDAStream> take();  // returned to the pool by the last owner

 private:
  c10::DeviceIndex device_;
  std::mutex mutex_;
  std::vector<c10::cuda::CUDAStream> free_;
};

// Shared by the communicators of this rank.
struct Device {
  c10::DeviceIndex index;
  WatchdogPtr watchdog;
  std::shared_ptr<EventPool> events = std::make_shared<EventPool>();
  std::shared_ptr<StreamPool> streams = std::make_shared<StreamPool>(index);
};

class NcclComm {
 public:
  NcclComm(std::shared_ptr<Device> device, ncclComm_t comm);
  ~NcclComm();  // the communicator is destroyed when its calls have run
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  ncclComm_t get() const { return comm_; }
  const c10::cuda::CUDAStream& stream() const { return *stream_; }

 private:
  std::shared_ptr<Device> device_;
  ncclComm_t comm_;
  std::shared_ptr<const c10::cuda::CUDAStream> stream_;
};

// Connects `size` ranks. Blocks until all of them have called it. Throws CommError after the timeout, or if a rank
// failed. `group` is for messages.
std::shared_ptr<NcclComm> connect(const std::shared_ptr<Device>& device, const ncclUniqueId& id, int size, int rank,
                                  const GroupName& group);

// A call whose tensors are ready on the current stream. Keeps them until its Work has been waited for.
class StreamCall {
 public:
  using Enqueue = c10::function_ref<void(at::TensorList outputs, at::TensorList inputs)>;

  // Stages the tensors (staging.h): each row of `output_row` outputs or `input_row` inputs is in one buffer.
  StreamCall(std::shared_ptr<Device> device, const CollectiveCall& call, std::shared_ptr<const GroupName> group,
             at::TensorList outputs, at::TensorList inputs, std::size_t output_row = 1, std::size_t input_row = 1);
  ~StreamCall();
  StreamCall(const StreamCall&) = delete;
  StreamCall& operator=(const StreamCall&) = delete;

  // Calls enqueue(outputs, inputs) with contiguous tensors, after the caller's work. Called once, by any thread.
  void launch(const NcclComm& comm, Enqueue enqueue);
  void fail(const std::string& error);  // instead of launch(): wait() throws it

  void wait();
  bool done();

 private:
  void wait_until_launched() const;
  void release(const c10::cuda::CUDAStream& ready);

  std::shared_ptr<Device> device_;
  std::shared_ptr<Operation> operation_;
  c10::cuda::CUDAStream caller_;
  std::optional<Event> before_;
  std::optional<c10::cuda::CUDAStream> stream_;  // of the communicator, set by launch()
  std::string error_;
  std::mutex mutex_;  // of the tensors
  std::vector<at::Tensor> outputs_, inputs_, staged_outputs_, staged_inputs_;
};

// The Work of a call. The destructor waits.
Work work_of(std::shared_ptr<StreamCall> call);

}  // namespace dtensor::nccl
