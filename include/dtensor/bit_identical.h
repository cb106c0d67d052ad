// A scope in which results have the same bits on every mesh, whatever the placements and the number of threads. See
// docs/design/bit_identical.md for the operators that have such a form.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "dtensor/export.h"

namespace dtensor {

// While an object lives, operators on DTensors give the bits that one device gives in the same scope, or throw an error
// with their name. Open it around forward, backward and the optimizer step. Off by default.
class DTENSOR_API BitIdentical {
 public:
  // Contracted dimensions of products are summed in blocks of `block` indices, in [8, 512]. Results depend on it. Shard
  // edges at its multiples avoid moving rows.
  explicit BitIdentical(std::int64_t block = 64);
  static bool current();  // whether one is open on this thread
  // SHA-256 in hexadecimal digits of the elements in row-major order, whatever the mesh and the placements, in a scope
  // or not. It gathers the full tensor on every rank of its mesh. Empty on other ranks. Throws CommError without
  // OpenSSL's libcrypto.
  static std::string content_hash(const at::Tensor& tensor);
  BitIdentical(const BitIdentical&) = delete;
  BitIdentical& operator=(const BitIdentical&) = delete;

 private:
  std::shared_ptr<const void> scope_;
};

}  // namespace dtensor
