// Names of the kinds of operators in hardware tables and reports.
#pragma once

#include "dtensor/dry_run.h"

namespace dtensor {

inline const char* kind_name(StepTrace::Kind kind) {
  switch (kind) {
    case StepTrace::Kind::product:
      return "product";
    case StepTrace::Kind::attention:
      return "attention";
    case StepTrace::Kind::norm:
      return "norm";
    case StepTrace::Kind::host:
      return "host";
    case StepTrace::Kind::transfer:
      return "transfer";
    default:
      return "elementwise";
  }
}

}  // namespace dtensor
