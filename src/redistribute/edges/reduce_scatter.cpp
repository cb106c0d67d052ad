// Partial to Shard: each member receives the reduced values of its part.
#include <bit>

#include "redistribute/edges/edge.h"

namespace dtensor {

at::Tensor run_reduce_scatter(const EdgeCall& call) {
  const RegionExchange exchange = exchange_of(call);
  const ReduceOp op = call.edge.from[std::countr_zero(call.edge.axes)].reduce_op();
  call.communicator().reduce_scatter(exchange.result(), exchange.pieces(), op).wait();
  return exchange.result();
}

}  // namespace dtensor
