// BitIdentical is an operator scope, so operators leave their fast path only while one is open.

#include "dtensor/bit_identical.h"

#include <c10/util/Exception.h>

#include "internal/bit_identical.h"
#include "internal/scoped_value.h"
#include "scope/scope_frames.h"

namespace dtensor {
namespace {

struct Blocks {
  std::int64_t size;
};

Blocks checked(std::int64_t block) {
  TORCH_CHECK_VALUE(block >= 8 && block <= 512, "BitIdentical: expected a block size in [8, 512], got ", block);
  return {block};
}

}  // namespace

BitIdentical::BitIdentical(std::int64_t block)
    : scope_(open_scope(checked(block), Recompute::restored, OperatorScope::yes)) {}

std::int64_t bit_identical_block() {
  if (!any_operator_scope()) return 0;
  const auto* blocks = ScopedValue<Blocks>::current();
  return blocks == nullptr ? 0 : blocks->size;
}

bool BitIdentical::current() { return bit_identical_block() != 0; }

void refuse_if_bit_identical(const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(!is_bit_identical(), what, " has no bit-identical form (docs/design/bit_identical.md). ",
                              "Run it outside the BitIdentical scope, where its bits depend on the mesh.");
}

}  // namespace dtensor
