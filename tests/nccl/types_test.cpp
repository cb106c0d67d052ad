// Reductions that are passed to NCCL. It lacks the others, or their values differ from ATen's.
#include "comm/nccl/types.h"

#include <gtest/gtest.h>

#include "dtensor/comm.h"

namespace dtensor::nccl {
namespace {

TEST(NcclTypes, FloatingPointMinAndMaxAreUnsupported) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const auto op : {ReduceOp::max, ReduceOp::min})
      EXPECT_FALSE(supports_reduction(dtype, op)) << "NCCL does not propagate NaN";
    for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product}) EXPECT_TRUE(supports_reduction(dtype, op));
  }
  EXPECT_TRUE(supports_reduction(at::kLong, ReduceOp::max));
  EXPECT_TRUE(supports_reduction(at::kBool, ReduceOp::max));
}

TEST(NcclTypes, Int16AndComplexProductsAndAveragesAreUnsupported) {
  for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::product}) {
    EXPECT_FALSE(supports_reduction(at::kShort, op));
    EXPECT_FALSE(supports_reduction(at::kUInt16, op));
  }
  for (const auto op : {ReduceOp::avg, ReduceOp::product}) EXPECT_FALSE(supports_reduction(at::kComplexFloat, op));
  EXPECT_TRUE(supports_reduction(at::kComplexFloat, ReduceOp::sum));
}

// NCCL has a data type for each dtype for which it has a reduction.
TEST(NcclTypes, EverySupportedReductionHasANcclType) {
  for (const auto dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kBool, at::kByte, at::kChar, at::kShort, at::kUInt16,
        at::kInt, at::kUInt32, at::kLong, at::kUInt64, at::kComplexFloat, at::kComplexDouble}) {
    for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
      if (supports_reduction(dtype, op)) {
        EXPECT_NO_THROW(nccl_reduction(dtype, op)) << dtype;
      }
    }
  }
}

}  // namespace
}  // namespace dtensor::nccl
