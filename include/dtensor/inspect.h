// Asking the engine what it does: explanations, strictness, the decision cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dtensor/export.h"

namespace dtensor {

// What explain() tells.
enum class Explain : std::uint8_t {
  communication,  // what this rank received, by module and operator, in bytes, and which placements would avoid it
  decisions,      // of each operator on DTensors the candidates, their prices and the choice
};

// Runs fn and says what its operators did, and why.
DTENSOR_API std::string explain(const std::function<void()>& fn, Explain what = Explain::communication);

// What Strict refuses.
enum class Strictness : std::uint8_t {
  relaxed,  // operators without a rule run replicated with one warning each; plain operands count as Replicate
  strict,   // both are errors (plain operands of dimension >= 1)
};

// Scopes hold for this thread while they live, and for backward passes that start meanwhile.
class DTENSOR_API Strict {
 public:
  explicit Strict(Strictness strictness = Strictness::strict);

 private:
  std::shared_ptr<const void> scope_;
};

// What ImplicitRedistributionScope does.
enum class ImplicitRedistribution : std::uint8_t {
  allow,
  warn,   // each call says the operator, its operands and the bytes
  error,  // an error on every rank, before anything moves
};

// While it lives: what happens where an operator needs an operand in other placements, so that ranks
// would exchange data that the program did not ask to move (redistribute, full_tensor and the gather of a storage shard
// were asked for; slices move nothing; reading a number moves what it must). To log them, listen to operators
// (dtensor/events.h): Event::bytes is what an operator's operands received. Nests: the innermost counts.
class DTENSOR_API ImplicitRedistributionScope {
 public:
  explicit ImplicitRedistributionScope(ImplicitRedistribution policy = ImplicitRedistribution::error);

 private:
  std::shared_ptr<const void> scope_;
};

// What Checked compares.
enum class Checks : std::uint8_t {
  // Ranks call the same operators: each mesh's collectives carry a hash over the operators that were called on it, with
  // their arguments (specs, sizes, indices, numbers, places of random draws) and their order. Where it differs, every
  // rank throws a CommError that names the first operator that does, the ranks and the module. Costs no collective.
  calls,
  // That, and: plain operands are compared across ranks at every call, and so are the replicas of operands and results;
  // of each kind of call the first, and a few of many, is compared with the same operator on the whole operands, so
  // that a wrong rule is an error. Costs collectives, and the memory of the whole operands.
  values,
};

// While it lives, for debugging. Ranks open it between the same operators. DTENSOR_CHECKED=calls|values: one around
// every rank's function.
class DTENSOR_API Checked {
 public:
  explicit Checked(Checks checks = Checks::values);

  // As given.
  struct Mode {
    // What is compared.
    Checks checks;
  };

 private:
  std::shared_ptr<const void> scope_;
};

// DTENSOR_CHECKED=calls or values; none: not set. A c10::ValueError for anything else.
DTENSOR_API std::optional<Checks> checks_from_environment();

// While it lives, this rank's thread is under what the environment asks for. launch() and run_local() have one.
class CheckedFromEnvironment {
 public:
  CheckedFromEnvironment() {
    if (const auto checks = checks_from_environment()) checked_.emplace(*checks);
  }

 private:
  std::optional<Checked> checked_;
};

// Of this thread's decision cache.
struct CacheStats {
  // Calls that were known and those that were not, decisions kept, and forgotten for room.
  std::uint64_t hits = 0, misses = 0, entries = 0, evictions = 0;
  // Hits that took longer ways than a comparison with the operator's last calls: keys that were built (of lists, of
  // calls in more ways than are remembered), and among them those of boxed kernels, about a microsecond each.
  std::uint64_t key_lookups = 0, boxed_hits = 0;
};
// The decision cache is this thread's, and only saves time: clearing or bounding it on one rank changes no result and
// no collective.
DTENSOR_API CacheStats cache_stats();
DTENSOR_API void clear_cache();
inline constexpr std::size_t kDefaultCacheLimit = 1024;
DTENSOR_API void set_cache_limit(std::size_t entries);  // per operator, at least 1; what exceeds it is forgotten

}  // namespace dtensor
