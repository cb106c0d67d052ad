// Errors that only ranks with elements would see.
#pragma once

#include <exception>

#include "ops/cached_call.h"

namespace dtensor {

// Kernels look at types (and some, at sizes) where there are elements, so that a rank whose part is empty would pass
// what the others refuse. It makes the call on stand-ins of another rank's sizes: the error of types or sizes that this
// gives, to be thrown in place of the local call. Null where no part is empty, and where nothing is wrong.
std::exception_ptr refusal_on_stand_ins(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CachedCall& call);

}  // namespace dtensor
