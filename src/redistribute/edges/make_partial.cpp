// Replicate or Shard to Partial, without communication. For sum and product only the first rank of the axis keeps its
// values. Elements that a rank does not store are filled with the identity of the reduction.
#include <ATen/ATen.h>

#include <bit>
#include <limits>

#include "redistribute/edges/edge.h"
#include "redistribute/result_buffers.h"

namespace dtensor {
namespace {

template <class T>
at::Scalar extreme(bool lowest) {
  return lowest ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max();
}

// For 8-bit types without infinities, which would become NaN.
template <class T>
at::Scalar finite_extreme(bool lowest) {
  using Limits = std::numeric_limits<T>;
  return static_cast<float>(lowest ? Limits::lowest() : Limits::max());
}

// The lowest (or highest) value of a dtype.
at::Scalar extreme_of(at::ScalarType dtype, bool lowest) {
  switch (dtype) {
    case at::kBool:
      return !lowest;
    case at::kByte:
      return extreme<std::uint8_t>(lowest);
    case at::kChar:
      return extreme<std::int8_t>(lowest);
    case at::kShort:
      return extreme<std::int16_t>(lowest);
    case at::kInt:
      return extreme<std::int32_t>(lowest);
    case at::kLong:
      return extreme<std::int64_t>(lowest);
    case at::kUInt16:
      return extreme<std::uint16_t>(lowest);
    case at::kUInt32:
      return extreme<std::uint32_t>(lowest);
    case at::kUInt64:
      return extreme<std::uint64_t>(lowest);
    case at::kFloat8_e4m3fn:
      return finite_extreme<c10::Float8_e4m3fn>(lowest);
    case at::kFloat8_e4m3fnuz:
      return finite_extreme<c10::Float8_e4m3fnuz>(lowest);
    case at::kFloat8_e5m2fnuz:
      return finite_extreme<c10::Float8_e5m2fnuz>(lowest);
    default:
      TORCH_CHECK(at::isFloatingType(dtype), "Partial(max) and Partial(min) do not support ", dtype);
      return lowest ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  }
}

// The identity of `op`. Negative zero for sums, which preserves negative zeros.
at::Scalar identity(ReduceOp op, at::ScalarType dtype) {
  switch (op) {
    case ReduceOp::max:
      return extreme_of(dtype, /*lowest=*/true);
    case ReduceOp::min:
      return extreme_of(dtype, /*lowest=*/false);
    case ReduceOp::product:
      return 1;
    default:
      if (at::isComplexType(dtype)) return c10::complex<double>(-0.0, -0.0);
      return at::isFloatingType(dtype) ? at::Scalar(-0.0) : at::Scalar(0);
  }
}

bool contributing_rank_only(ReduceOp op) { return op == ReduceOp::sum || op == ReduceOp::product; }

}  // namespace

at::Tensor run_make_partial(const EdgeCall& call) {
  const ReduceOp op = call.edge.to[std::countr_zero(call.edge.axes)].reduce_op();
  bool keeps = true, padded = false;
  for (std::size_t i = 0; i < call.edge.from.size(); ++i) {
    if (!(call.edge.axes >> i & 1)) continue;
    padded |= call.edge.from[i].is_shard();
    keeps &= call.edge.from[i].is_shard() || !contributing_rank_only(op) || call.mesh.coordinate[i] == 0;
  }
  if (keeps && !padded) return call.owned ? call.local : copied(call.local);
  at::Tensor result = result_buffer(call.wanted.sizes(), call.local);
  result.fill_(identity(op, call.dtype));
  if (keeps) write_part(result, call.wanted, call.held, call.local);
  return result;
}

}  // namespace dtensor
