// Pieces of tensors for other ranks, all that go over one communicator in one all-to-all: for exchanges of one's own
// (internal/shard_segments.h says who holds what).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/export.h"

namespace dtensor {

// Pieces that one rank sends to another arrive in the order in which the other receives them, in equal sizes. All
// members of a communicator open the same buckets in the same order. One piece between two ranks travels from where it
// is to where it belongs; several are packed, which costs a copy on either side. A piece may lie in the memory of a
// target: all pieces, of every bucket, are read before any target is filled.
class DTENSOR_API BucketedAllToAll {
 public:
  // Returns the bucket: one per communicator and dtype. kByte: pieces of any dtypes, as bytes. `remote`: whether any
  // member may send to another; else no collective is needed, and a piece for or from another is an error.
  std::size_t bucket(const Communicator& members, at::ScalarType dtype, bool remote = true);
  // `peer`: rank in the bucket's communicator. The tensors may be views of any strides.
  void send(std::size_t bucket, int peer, const at::Tensor& piece);
  void receive(std::size_t bucket, int peer, const at::Tensor& target);
  // Fills all targets. Collective; closes the buckets, also where it throws: what comes next opens its own.
  void run() { start()(); }
  // The same in the background where the backend can; the targets are filled when what it returns has been called.
  std::function<void()> start();

 private:
  struct Bucket {
    Communicator members;
    at::ScalarType dtype;
    bool remote;
    std::vector<std::vector<at::Tensor>> out, in;  // per member
  };
  Bucket& opened(std::size_t bucket, int peer);
  static std::function<void()> begin(Bucket bucket);

  std::vector<Bucket> buckets_;
};

}  // namespace dtensor
