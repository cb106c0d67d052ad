// The header that a rank sends to each peer about its call, so that both compare the calls before they use the data.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "dtensor/comm_backend.h"

namespace dtensor::p2p {

// Sizes of a tensor in fixed space; with more than kDims dimensions, the trailing ones are multiplied. For a list: the
// number of tensors, a hash of all dtypes and sizes, and the element counts of the first tensors.
struct Sizes {
  static constexpr int kDims = 8;
  static constexpr std::int64_t kNone = -1, kList = -2;
  std::int64_t dims = kNone;
  std::int64_t size[kDims] = {};

  Sizes() = default;
  explicit Sizes(const at::Tensor& tensor);
  explicit Sizes(at::TensorList list);
  friend bool operator==(const Sizes&, const Sizes&) = default;
  std::string str() const;
};

struct CallHeader {
  std::uint64_t group = 0;
  std::uint64_t sequence = 0;
  std::uint64_t operators = 0, signature = 0;  // as in CollectiveCall
  std::uint64_t failed_calls = 0;              // as in Job
  std::int32_t kind = 0, op = 0, dtype = 0, peer = 0;
  std::int64_t payload_tag = 0;  // send only: the tag of the data
  Sizes gives;                   // sizes that this rank sends to the peer
  Sizes expects;                 // sizes that it expects from the peer
  char caller[96] = {};          // " for aten::mm in h.0", truncated
  char error[192] = {};          // a recent operator error of this rank, truncated; empty: none

  CallHeader() = default;
  CallHeader(const CollectiveCall& call, std::uint64_t group, const Sizes& gives, const Sizes& expects);
  void record_error(const std::string& text) { text.copy(error, sizeof error - 1); }
  // The texts of a received header, whose bytes are arbitrary.
  std::string caller_text() const { return {caller, strnlen(caller, sizeof caller)}; }
  std::string error_text() const { return {error, strnlen(error, sizeof error)}; }
  // Example: all_reduce #3 (sum, Float, gives [4, 5]).
  std::string str() const;
};

// Whether the two sides of a pair made matching calls with matching sizes. `theirs` is the header of the peer.
bool fits(const CallHeader& mine, const CallHeader& theirs);

}  // namespace dtensor::p2p
