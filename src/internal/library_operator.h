// Operators of the library "dtensor", which are defined with their rules in sharding_prop/rules/fused.cpp.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace dtensor {

// The operator `name` ("dtensor::gated_product"), to be kept by the caller.
template <class Signature>
c10::TypedOperatorHandle<Signature> library_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace dtensor
