// Sends tensors between stages along the pipeline's axis. Ranks of neighboring stages with the same coordinates on
// the other axes exchange their local tensors and the metadata of the DTensors. The stages' meshes have
// the same shape, so placements have the same meaning on both.
#pragma once

#include <deque>

#include "dtensor/comm.h"
#include "dtensor/pipeline.h"
#include "dtensor/random.h"

namespace dtensor::pipeline {

// Position of a microbatch in its batch, and the number of random operators that it has passed. They make random
// numbers equal to those of one device.
struct MicrobatchState {
  MicrobatchRandomScope::Range rows;
  std::uint64_t random_operators = 0;
};

// Thrown by receive() if the peer sent a failure instead of a message.
struct MessageRefused {
  std::string reason;
};

class StageMessages {
 public:
  // `line`: the ranks along the axis. `slice`: this stage's mesh, or undefined.
  StageMessages(Communicator line, DeviceMesh slice) : axis_comm_(std::move(line)), slice_(std::move(slice)) {}

  // Does not block. Messages arrive in the order in which they are sent; receive() checks `channel`, so that a mismatch
  // is an error.
  void send(const Tensors& tensors, const MicrobatchState& where, int peer, int channel);
  // Sends a failure instead of a message. Does not block.
  void send_failure(const std::string& reason, int peer, int channel);
  // Blocks. Tensors whose sender requires a gradient are leaves with requires_grad. Throws MessageRefused if the peer
  // sent a failure.
  std::pair<Tensors, MicrobatchState> receive(int peer, int channel);
  // Blocks until all sent messages have been received.
  void finish();

 private:
  struct Sent {
    at::Tensor header;
    Tensors tensors;
    std::vector<Work> works;
  };
  void forget_sent();
  void send_header(std::vector<std::int64_t> numbers, int peer, Sent& sent);

  Communicator axis_comm_;
  DeviceMesh slice_;
  std::deque<Sent> sent_;
};

}  // namespace dtensor::pipeline
