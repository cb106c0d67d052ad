// What a rank tells each peer about its call, so that both can compare before they use each other's data.
#pragma once

#include <cstdint>
#include <string>

#include "dtensor/comm_backend.h"

namespace dtensor::p2p {

// Sizes of a tensor in a fixed space; the trailing dimensions of one with more than kDims are multiplied together. Of a
// list of several tensors how many they are, a hash of all dtypes and sizes, and the elements of the first ones.
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
  std::int32_t kind = 0, op = 0, dtype = 0, peer = 0;
  std::int64_t payload_tag = 0;  // send only: under which the data comes
  Sizes gives;                   // what this rank sends to the other
  Sizes expects;                 // what it wants from the other
  char caller[96] = {};          // " for aten::mm in h.0", cut
  char error[192] = {};          // of an operator of this rank shortly before, cut; empty: none

  CallHeader() = default;
  CallHeader(const CollectiveCall& call, std::uint64_t group, const Sizes& gives, const Sizes& expects);
  void record_error(const std::string& text) { text.copy(error, sizeof error - 1); }
  // all_reduce #3 (sum, Float, gives [4, 5])
  std::string str() const;
};

// Whether the two ends of a pair have called the same thing with sizes that fit. `theirs` is what the other sent.
bool fits(const CallHeader& mine, const CallHeader& theirs);

}  // namespace dtensor::p2p
