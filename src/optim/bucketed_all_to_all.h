// Pieces of tensors for other ranks, all that go over one communicator in one all-to-all.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dtensor/comm.h"

namespace dtensor::optim {

// Pieces that one rank sends to another arrive in the order in which the other receives them. All members of a
// communicator open the same buckets in the same order.
class BucketedAllToAll {
 public:
  // `remote`: whether any member may send to another; else no collective is needed. Returns the bucket.
  std::size_t bucket(const Communicator& members, at::ScalarType dtype, bool remote);
  void send(std::size_t bucket, int peer, const at::Tensor& piece);
  void receive(std::size_t bucket, int peer, const at::Tensor& target);
  void run();

 private:
  struct Bucket {
    Communicator members;
    at::ScalarType dtype;
    bool remote;
    std::vector<std::vector<at::Tensor>> out, in;  // per member
  };
  static void exchange(Bucket& bucket);

  std::vector<Bucket> buckets_;
};

}  // namespace dtensor::optim
