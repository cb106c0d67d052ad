// The scopes that decide what a function computes, for when it runs again in backward.
#pragma once

#include <memory>
#include <vector>

#include "internal/scoped_value.h"

namespace dtensor {

class DTENSOR_API ScopeSnapshot {
 public:
  // The innermost Recompute::restored scope of each type on this thread.
  static ScopeSnapshot current();

  // While it lives, the scopes of the snapshot are current on this thread, and no other Recompute::restored ones.
  class DTENSOR_API Restore {
   public:
    explicit Restore(const ScopeSnapshot& snapshot);

   private:
    std::vector<std::shared_ptr<const void>> scopes_;
  };

 private:
  // Shares the values, not the scopes, which end when their objects do.
  struct Entry {
    detail::ScopeFrame::Kind kind;
    std::shared_ptr<const void> value;
  };
  static std::shared_ptr<const void> open(const Entry& entry);

  std::vector<Entry> entries_;
};

}  // namespace dtensor
