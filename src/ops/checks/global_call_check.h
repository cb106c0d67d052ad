// Errors that only some ranks' parts of a call would show.
#pragma once

#include "ops/cache/cached_call.h"

namespace dtensor {

// Kernels judge the part of their rank: a part that is empty or shorter than others' passes what those refuse, and a
// local kernel that stands for the operator may take types that it does not. Where that can be, and the whole call is
// small, the operator itself judges it on zeros and ones, alike on every rank; its error is thrown. (Of larger calls a
// mistake is an error on the ranks whose part shows it, of which the others are told.)
void validate_full_call(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CachedCall& call);

}  // namespace dtensor
