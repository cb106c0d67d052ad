// Random hardware for searches of layouts.
#pragma once

#include "dtensor/estimate.h"
#include "support/draws.h"

namespace plan {

// One node of 8 ranks, or two of 4 with slow links between them. The costs of calls and links decide which layout is
// the fastest.
inline dtensor::HardwareModel any_hardware() {
  using dtensor::test::one_of;
  dtensor::HardwareModel h;
  h.name = "test";
  const double rate = one_of({1e9, 1e11, 1e13});
  h.rates = {{"product", {{1, rate}}}, {"product float8", {{1, 2 * rate}}}, {"attention", {{1, rate}}},
             {"norm", {{1, 1e10}}},    {"elementwise", {{1, 1e10}}},        {"host", {{1, 1e9}}},
             {"transfer", {{1, 3e9}}}};
  h.operator_seconds = one_of({0.0, 1e-6, 1e-5});
  h.asynchronous = one_of({false, true});
  const double latency = one_of({0.0, 1e-6, 1e-4}), bandwidth = one_of({1e7, 1e9, 1e11});
  h.levels = {{"node", 8, latency, bandwidth}};
  if (one_of({false, true})) h.levels = {{"node", 4, latency, bandwidth}, {"rack", 8, 4 * latency, bandwidth / 16}};
  return h;
}

}  // namespace plan
