// Inspection of operator calls: explanations, strictness, the decision cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dtensor/export.h"

namespace dtensor {

// The kind of report of explain().
enum class Explain : std::uint8_t {
  communication,  // what this rank received, by module and operator, in bytes, and which placements would avoid it
  decisions,      // for each operator on DTensors: the candidates, their costs and the choice
};

// Runs fn once and returns the report `what`, as text, of this rank's operators and collectives meanwhile, those of
// backward passes included. Does not communicate. Rethrows what fn throws.
DTENSOR_API std::string explain(const std::function<void()>& fn, Explain what = Explain::communication);

// What Strict rejects.
enum class Strictness : std::uint8_t {
  relaxed,  // operators without a rule run replicated with one warning each; regular operands count as Replicate
  strict,   // both are errors (regular operands of dimension >= 1)
};

// These scopes affect this thread during their lifetime, and backward passes that start meanwhile.
class DTENSOR_API Strict {
 public:
  explicit Strict(Strictness strictness = Strictness::strict);

 private:
  std::shared_ptr<const void> scope_;
};

// What ImplicitRedistributionScope does.
enum class ImplicitRedistribution : std::uint8_t {
  allow,
  warn,   // each call names the operator, its operands and the bytes
  error,  // an error on every rank before any data is moved
};

// Controls operators that need an operand in other placements, so that ranks would communicate without an explicit
// request. Requested communication is allowed: redistribute, full_tensor, the gather of a storage shard and reading a
// number. Slices communicate nothing. To log implicit redistributions, listen to operators (dtensor/events.h):
// Event::bytes counts the bytes that an operator's operands received. Scopes nest; the innermost applies.
class DTENSOR_API ImplicitRedistributionScope {
 public:
  explicit ImplicitRedistributionScope(ImplicitRedistribution policy = ImplicitRedistribution::error);

 private:
  std::shared_ptr<const void> scope_;
};

// What Checked compares.
enum class Checks : std::uint8_t {
  // Ranks call the same operators. Each mesh's collectives carry a hash of the operators called on it, with their order
  // and arguments (specs, sizes, indices, numbers, positions in the random stream). If hashes differ, every rank throws
  // a CommError that names the first different operator, the ranks and the module. Costs no collective.
  calls,
  // Like `calls`; also compares regular operands across ranks at every call, and replicas of operands and results. The
  // first call of each kind, and a sample of later ones, is compared with the same operator on the full operands. So a
  // wrong rule is an error. Costs collectives, and the memory of the full operands.
  values,
};

// A debugging scope. All ranks must open and close it between the same operators. DTENSOR_CHECKED=calls|values opens
// one around every rank's function.
class DTENSOR_API Checked {
 public:
  explicit Checked(Checks checks = Checks::values);

  // The arguments of the constructor.
  struct Mode {
    // What is compared.
    Checks checks;
  };

 private:
  std::shared_ptr<const void> scope_;
};

// Statistics of this thread's decision cache.
struct CacheStats {
  // Calls found in the cache, calls not found, stored decisions, and decisions evicted because of the limit.
  std::uint64_t hits = 0, misses = 0, entries = 0, evictions = 0;
  // Hits that did not match the operator's recent calls. key_lookups: a key was built (lists; operators called in more
  // ways than are remembered). boxed_hits: those among them in the boxed kernel, about a microsecond each.
  std::uint64_t key_lookups = 0, boxed_hits = 0;
};
// The decision cache is local to this thread and only saves time. Clearing or limiting it on one rank changes no result
// and no collective.
DTENSOR_API CacheStats cache_stats();
DTENSOR_API void clear_cache();
DTENSOR_API void set_cache_limit(std::size_t entries = 1024);  // per operator, at least 1; older entries are evicted

}  // namespace dtensor
