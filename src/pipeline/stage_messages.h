// Tensors from stage to stage along the pipeline's axis. Ranks of neighbouring stages that have the same coordinate on
// the other axes exchange their local parts, and what is needed to make DTensors of them again: slices of one mesh have
// the same shape, so placements mean the same on both.
#pragma once

#include <deque>

#include "dtensor/comm.h"
#include "dtensor/pipeline.h"
#include "dtensor/random.h"

namespace dtensor::pipeline {

// Where a microbatch lies in its batch, and how many random operators have run on its way: so that random numbers are
// those of one device.
struct MicrobatchState {
  MicrobatchRandomGuard::Range rows;
  std::uint64_t random_operators = 0;
};

// Received in the place of a message: why there is none.
struct MessageRefused {
  std::string reason;
};

class StageMessages {
 public:
  // `line`: the ranks along the axis. `slice`: this stage's mesh, or none.
  StageMessages(Communicator line, DeviceMesh slice) : axis_comm_(std::move(line)), slice_(std::move(slice)) {}

  // Returns at once. Messages arrive in the order in which they are sent; `channel` tells them apart, so that a mistake
  // is an error.
  void send(const Tensors& tensors, const MicrobatchState& where, int peer, int channel);
  // In the place of a message that cannot be made, likewise.
  void send_failure(const std::string& reason, int peer, int channel);
  // Blocks. Tensors that are to get a gradient are leaves that require one. Throws MessageRefused where that was
  // refused.
  std::pair<Tensors, MicrobatchState> receive(int peer, int channel);
  // Blocks until all that was sent has been received.
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
