// The buffers that collectives of processes copy tensors through: packed short tensors, contiguous copies, and what
// the others send to a reduction. Constructors only allocate, so a dry run needs the memory of a run.
#pragma once

#include <vector>

#include "comm/memory/packed.h"
#include "dtensor/comm_backend.h"

namespace dtensor::p2p {

enum class PackedAs : std::uint8_t { bytes, numbers };

// The messages for a list of tensors: short tensors are packed into one if there are several. Both sides know all
// sizes, so they agree on which tensors are short.
class Coalesced {
 public:
  Coalesced(at::TensorList list, PackedAs as);

  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  void pack() const { packed_.fill(short_); }
  void unpack() const { packed_.unpack(short_); }

 private:
  std::vector<at::Tensor> short_, tensors_;
  Packed packed_;
};

// The same with a contiguous buffer for each tensor that has gaps, or a conjugate or negative bit.
class Messages {
 public:
  Messages(at::TensorList list, PackedAs as);

  const std::vector<at::Tensor>& buffers() const { return buffers_; }
  void fill() const;    // the buffers from the list
  void unpack() const;  // the list from the buffers

 private:
  Coalesced list_;
  std::vector<at::Tensor> buffers_;
};

// Lists of tensors are those of list_collectives.h. Members other than `me` are in the order of their ranks.
struct GatherStaging {
  GatherStaging(int me, int members, at::TensorList outputs, at::TensorList inputs);
  Messages sent;
  std::vector<Messages> received;  // of the other members
};

struct ReduceScatterStaging {
  ReduceScatterStaging(int me, int members, at::TensorList outputs, at::TensorList inputs);
  Coalesced sums, own;
  std::vector<Messages> sent;                     // to the other members
  std::vector<std::vector<at::Tensor>> received;  // of the other members
};

struct AllReduceStaging {
  AllReduceStaging(int me, int members, at::TensorList tensors);
  Messages all;
  bool sliced;                                    // each member reduces a slice, not all data
  std::vector<std::vector<at::Tensor>> received;  // of the other members
};

struct AllToAllStaging {
  AllToAllStaging(int me, at::TensorList outputs, at::TensorList inputs);
  std::vector<Messages> sent, received;  // to and of the other members
};

// Allocates and frees the buffers of a collective of member `me`, for a dry run.
void allocate_staging(const CollectiveCall& call, int me, int members, at::TensorList outputs, at::TensorList inputs);

}  // namespace dtensor::p2p
