// A scope in which results have the same bits on every mesh, whatever the placements and the number of threads. See
// docs/design/bit_identical.md for the operators that have such a form.
#pragma once

#include <cstdint>
#include <memory>

#include "dtensor/export.h"

namespace dtensor {

// While an object lives, operators on DTensors give the bits that one device gives in the same scope, or throw an error
// with their name. Open it around forward, backward and the optimizer step. Off by default.
class DTENSOR_API BitIdentical {
 public:
  // Contracted dimensions of products are summed in blocks of `block` indices, in [8, 512]. Results depend on it. Shard
  // edges at its multiples avoid moving rows.
  explicit BitIdentical(std::int64_t block = 32);
  static bool current();  // whether one is open on this thread
  BitIdentical(const BitIdentical&) = delete;
  BitIdentical& operator=(const BitIdentical&) = delete;

 private:
  std::shared_ptr<const void> scope_;
};

}  // namespace dtensor
