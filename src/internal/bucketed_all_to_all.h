// Packs pieces of tensors for other ranks, so that all pieces of one communicator use one all-to-all. For custom
// exchanges; internal/shard_segments.h computes which rank stores which elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/export.h"

namespace dtensor {

// The pieces from one rank to another must have the same order and sizes on both sides. All members of a communicator
// open the same buckets in the same order. A single piece between two ranks is sent without a copy; several pieces are
// packed, which costs one copy on each side. A piece may overlap a target: all pieces of all buckets are read before
// any target is written.
class DTENSOR_API BucketedAllToAll {
 public:
  // Returns the bucket of a communicator and dtype. kByte buckets take pieces of any dtype as bytes. `remote`: whether
  // any member may send to another one. If not, there is no collective, and a piece for or from another rank is an
  // error.
  std::size_t bucket(const Communicator& members, at::ScalarType dtype, bool remote = true);
  // `peer` is a rank of the bucket's communicator. Tensors may have any strides.
  void send(std::size_t bucket, int peer, const at::Tensor& piece);
  void receive(std::size_t bucket, int peer, const at::Tensor& target);
  // Fills all targets. Collective. Closes the buckets, even if it throws.
  void run() { start()(); }
  // The same asynchronously, if the backend supports it. Call the returned function to complete the targets.
  std::function<void()> start();

 private:
  struct Bucket {
    Communicator members;
    at::ScalarType dtype;
    bool remote;
    std::vector<std::vector<at::Tensor>> out, in;  // one list per member
  };
  Bucket& opened(std::size_t bucket, int peer);
  static std::function<void()> begin(Bucket bucket);

  std::vector<Bucket> buckets_;
};

}  // namespace dtensor
