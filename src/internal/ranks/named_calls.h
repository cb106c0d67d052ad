// Names of what collectives move. Members compare them, so that collectives of equal sizes that move different things
// do not meet.
#pragma once

#include <memory>
#include <string>

#include "dtensor/comm.h"
#include "dtensor/export.h"

namespace dtensor {

// During its lifetime, collectives that this thread starts move `what`. Another text on another member is an error on
// every member, which shows both. The innermost scope applies. Null: no scope.
class DTENSOR_API NamedCallScope {
 public:
  using Name = std::shared_ptr<const CallHistory>;
  static Name name(const std::string& what);

  explicit NamedCallScope(Name name);
  ~NamedCallScope();
  NamedCallScope(const NamedCallScope&) = delete;
  NamedCallScope& operator=(const NamedCallScope&) = delete;

  static const Name* current();  // null: none

 private:
  Name name_;
  const Name* outer_;
};

}  // namespace dtensor
