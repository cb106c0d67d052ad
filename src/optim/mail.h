// Pieces of tensors for other ranks, all that go over one communicator in one all-to-all.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dtensor/comm.h"

namespace dtensor::optim {

// Pieces that one rank posts to another arrive in the order in which the other expects them. All members of a
// communicator open the same boxes in the same order.
class Mail {
 public:
  // `remote`: whether any member may post to another; else no collective is needed. Returns the box.
  std::size_t open(const Communicator& members, at::ScalarType dtype, bool remote);
  void post(std::size_t box, int peer, const at::Tensor& piece);
  void expect(std::size_t box, int peer, const at::Tensor& target);
  void deliver();

 private:
  struct Box {
    Communicator members;
    at::ScalarType dtype;
    bool remote;
    std::vector<std::vector<at::Tensor>> out, in;  // per member
  };
  static void exchange(Box& box);

  std::vector<Box> boxes_;
};

}  // namespace dtensor::optim
