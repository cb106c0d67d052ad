// Gathers blocks of sharded tensors on the ranks that compute them, and scatters the results to the shards.
#pragma once

#include <vector>

#include "dtensor/mesh.h"
#include "dtensor/tensor.h"
#include "internal/region_exchange.h"
#include "optim/blocks/parameter_blocks.h"

namespace dtensor::optim {

// Blocks of regular tensors are owned by every rank; blocks of a DTensor by one rank of its mesh.
class BlockExchange {
 public:
  // Returns the block's index. All ranks must add all blocks in the same order before assign().
  std::size_t add(const at::Tensor& tensor, Region region, double cost);
  // Assigns the most expensive blocks first, each to the least loaded rank of its mesh.
  void assign();

  bool owned(std::size_t block) const { return blocks_[block].owned; }
  std::int64_t owner(std::size_t block) const { return blocks_[block].owner; }  // world rank; -1: every rank
  // Throws if the block's tensor has moved to other ranks since assign().
  void check_ranks(std::size_t block) const;

  struct GatherRequest {
    std::size_t block;
    at::Tensor value;      // with the placements of the block's tensor
    bool squares = false;  // gathers only the sum of squares of the elements
  };
  // For each request: the block of the value on its owner, undefined on other ranks. Collective.
  std::vector<at::Tensor> gather(const std::vector<GatherRequest>& wanted);

  struct Result {
    std::size_t block;
    at::Tensor value;                       // the block on its owner; undefined on other ranks
    at::Tensor target;                      // this rank's local tensor, in which the block's region is filled
    bool may_fail = false, failed = false;  // may_fail is the same on all ranks; failed is set by the owner
  };
  // Collective. Values for tensors on the same ranks and with the same dtype share one exchange. Returns which results
  // failed: the same on all ranks of a block's mesh, false on others.
  std::vector<bool> scatter(const std::vector<Result>& results);

 private:
  struct Entry {
    at::Tensor tensor;
    Region region;
    double cost;
    bool member = true, owned = true;
    std::int64_t owner = -1;
    DeviceMesh mesh = {};        // mesh of a DTensor, whose ranks include the owner
    Placements placements = {};  // placements for which the following was computed
    TransferPlan gather = {};    // to the owner, from one rank of those with the same part
    TransferPlan scatter = {};   // from the owner to all ranks with a part
    int owner_peer = 0;
    Communicator members = {};
    bool split = false;  // whether the tensor is sharded over several ranks
  };

  Communicator communicator_of(const DeviceMesh& mesh);
  void route(Entry& block);
  Entry& routed(std::size_t block);
  static at::Tensor gather_squares(BucketedAllToAll& buckets, std::size_t bucket, const Entry& block,
                                   const at::Tensor& local);

  std::vector<Entry> blocks_;
  std::vector<std::pair<std::vector<std::int64_t>, Communicator>> communicators_;  // by set of ranks
};

}  // namespace dtensor::optim
