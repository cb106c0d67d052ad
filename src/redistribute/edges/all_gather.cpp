// Shard to Replicate: each member's part is received at its position in the result, computed from its ranges.
#include "redistribute/edges/edge.h"

namespace dtensor {

at::Tensor run_all_gather(const EdgeCall& call) {
  const RegionExchange exchange = exchange_of(call);
  call.communicator().all_gather(exchange.targets(), call.local).wait();
  return exchange.finish();
}

}  // namespace dtensor
