// Shards to other shards: members exchange the intersections of what one stores and the other needs.
#include "redistribute/edges/edge.h"

namespace dtensor {

at::Tensor run_all_to_all(const EdgeCall& call) {
  const RegionExchange exchange = exchange_of(call);
  call.communicator().all_to_all(exchange.targets(), exchange.pieces()).wait();
  return exchange.finish();
}

}  // namespace dtensor
