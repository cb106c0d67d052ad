// The send lists of a graph halo, checked on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "dtensor/comm.h"

namespace dtensor::halo {

// What the ranks have agreed on.
struct SendLists {
  std::vector<std::int64_t> send_counts, receive_counts;  // rows for and from each rank
  at::Tensor index;                                       // int64 [rows sent]: all lists in rank order, on the host
  bool remote = false;                                    // any rank sends to another one
};

// Checks the lists of all ranks and exchanges their sizes. Collective. Throws on every rank if any list is invalid; see
// GraphHalo.
SendLists agree_on_send_lists(const Communicator& ranks, std::int64_t owned, at::TensorList lists,
                              at::IntArrayRef expected_counts);

}  // namespace dtensor::halo
