// Asking the engine what it does: explanations, strictness, the decision cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "dtensor/export.h"

namespace dtensor {

// Runs fn and returns, for every operator that it calls on DTensors, the candidates, their prices and the choice.
DTENSOR_API std::string explain(const std::function<void()>& fn);

enum class Strictness : std::uint8_t {
  relaxed,  // operators without a rule run replicated with one warning each; plain operands count as Replicate
  strict,   // both are errors (plain operands of dimension >= 1)
};

// For this thread, while it lives.
class DTENSOR_API Strict {
 public:
  explicit Strict(Strictness strictness = Strictness::strict);
  ~Strict();
  Strict(const Strict&) = delete;
  Strict& operator=(const Strict&) = delete;

 private:
  Strictness previous_;
};

enum class ImplicitMoves : std::uint8_t {
  allowed,
  warned,   // each call says the operator, its operands and the bytes
  refused,  // an error on every rank, before anything moves
};

// For this thread, while it lives: what happens where an operator needs an operand in other placements, so that ranks
// would exchange data that the program did not ask to move (redistribute, full_tensor and the gather of a storage shard
// were asked for; slices move nothing; reading a number moves what it must). To log them, listen to operators
// (dtensor/events.h): Event::bytes is what an operator's operands received. Nests: the innermost counts.
class DTENSOR_API ExplicitRedistribution {
 public:
  explicit ExplicitRedistribution(ImplicitMoves moves = ImplicitMoves::refused);
  ~ExplicitRedistribution();
  ExplicitRedistribution(const ExplicitRedistribution&) = delete;
  ExplicitRedistribution& operator=(const ExplicitRedistribution&) = delete;

 private:
  ImplicitMoves previous_;
};

// For this thread, while it lives: plain operands are compared across ranks at every call, and local shapes with specs.
class DTENSOR_API Checked {
 public:
  Checked();
  ~Checked();
  Checked(const Checked&) = delete;
  Checked& operator=(const Checked&) = delete;

 private:
  bool previous_;
};

struct CacheStats {
  std::uint64_t hits = 0, misses = 0, entries = 0, evictions = 0;
};
// The decision cache is this thread's, and only saves time: clearing or bounding it on one rank changes no result and
// no collective.
DTENSOR_API CacheStats cache_stats();
DTENSOR_API void clear_cache();
inline constexpr std::size_t kDefaultCacheLimit = 1024;
DTENSOR_API void set_cache_limit(std::size_t entries);  // per operator, at least 1; what exceeds it is forgotten

}  // namespace dtensor
