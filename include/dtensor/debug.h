// Watching a program that runs on many ranks: what it communicates and for which module, what memory it holds, where a
// tensor lives, and how to stop one rank for a debugger.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "dtensor/export.h"
#include "dtensor/named_tensors.h"
#include "dtensor/phase.h"

namespace dtensor {

// Names the part of the model that runs on this thread while it lives. Scopes nest: "h.0", then "attn" is "h.0.attn".
// Costs a few nanoseconds where nobody watches. The backward pass of what ran inside is told apart by autograd's
// sequence numbers, so the model needs no hooks.
class DTENSOR_API ModuleScope {
 public:
  explicit ModuleScope(const std::string& name);  // the name must outlive the scope; empty: no scope
  explicit ModuleScope(std::string&& name) = delete;
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

  static std::string path();  // of this thread, "" outside any scope

 private:
  const std::string* name_;
  std::uint64_t first_node_ = 0;
};

// What collectives are counted by.
struct CommKey {
  std::string kind;    // all_gather, all_reduce, reduce_scatter, all_to_all, broadcast, ...
  std::string axis;    // mesh dimension name(s)
  std::string module;  // "" outside any ModuleScope
  // Whether forward or backward ran.
  Phase phase = Phase::forward;
  // The parameter that was gathered, or whose gradient was reduced; of several at once (a unit, a list) what their
  // names have in common, and how many they are: "h.0.* (12)". "" for activations, and where no names were given.
  std::string parameter = {};
  friend bool operator<(const CommKey& a, const CommKey& b) {
    return std::tie(a.module, a.phase, a.kind, a.axis, a.parameter) <
           std::tie(b.module, b.phase, b.kind, b.axis, b.parameter);
  }
};

// So many collectives, and what they brought.
struct CommCount {
  // How many.
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  // received by this rank from others
};

// Counts the collectives of this thread (and of backward passes that run on it) while it lives. Nests.
class DTENSOR_API CommDebugMode {
 public:
  CommDebugMode();
  // With a model's parameters as they are placed now, collectives are told apart by those that they are for
  // (CommKey::parameter).
  explicit CommDebugMode(const NamedTensors& parameters);
  ~CommDebugMode();
  CommDebugMode(const CommDebugMode&) = delete;
  CommDebugMode& operator=(const CommDebugMode&) = delete;

  // All that was counted; the sum of those for which `of` holds (none: of all).
  const std::map<CommKey, CommCount>& counts() const;
  CommCount total(const std::function<bool(const CommKey&)>& of = {}) const;
  // Sums by kind, axis and phase; an empty text counts any. `module`: the module itself and those below it.
  CommCount total(const std::string& kind, const std::string& axis = "", const std::string& module = "") const;
  CommCount total(const std::string& kind, Phase phase, const std::string& module = "") const;
  std::string table() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dtensor
