// Which reductions NCCL is asked for: others would have no name in it, or values that are not ATen's.
#include "comm/nccl/types.h"

#include <gtest/gtest.h>

#include "dtensor/comm.h"

namespace dtensor::nccl {
namespace {

TEST(NcclTypes, FloatingExtremesAreNotNccls) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const auto op : {ReduceOp::max, ReduceOp::min})
      EXPECT_FALSE(supports_reduction(dtype, op)) << "passes NaN over";
    for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product}) EXPECT_TRUE(supports_reduction(dtype, op));
  }
  EXPECT_TRUE(supports_reduction(at::kLong, ReduceOp::max));
  EXPECT_TRUE(supports_reduction(at::kBool, ReduceOp::max));
}

TEST(NcclTypes, ShortIntegersAndProductsOfComplexNumbersAreNot) {
  for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::product}) {
    EXPECT_FALSE(supports_reduction(at::kShort, op));
    EXPECT_FALSE(supports_reduction(at::kUInt16, op));
  }
  EXPECT_FALSE(supports_reduction(at::kComplexFloat, ReduceOp::product));
  EXPECT_TRUE(supports_reduction(at::kComplexFloat, ReduceOp::sum));
}

// Whatever it has a reduction of, it has a type for.
TEST(NcclTypes, EveryReductionHasAType) {
  for (const auto dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kBool, at::kByte, at::kChar, at::kShort, at::kUInt16,
        at::kInt, at::kUInt32, at::kLong, at::kUInt64, at::kComplexFloat, at::kComplexDouble}) {
    for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
      const bool complex_order = c10::isComplexType(dtype) && (op == ReduceOp::max || op == ReduceOp::min);
      if (supports_reduction(dtype, op) && !complex_order) EXPECT_NO_THROW(nccl_reduction(dtype, op)) << dtype;
    }
  }
}

}  // namespace
}  // namespace dtensor::nccl
