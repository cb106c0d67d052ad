// Blocks of sharded tensors brought whole to the rank that works on them, and its results brought back to the shards.
#pragma once

#include <vector>

#include "dtensor/mesh.h"
#include "dtensor/tensor.h"
#include "internal/bucketed_all_to_all.h"
#include "optim/blocks/parameter_blocks.h"

namespace dtensor::optim {

// Blocks of plain tensors are owned by every rank; those on a mesh by one of its ranks.
class BlockExchange {
 public:
  // Returns the block's number. All blocks are added, in the same order on every rank, before assign().
  std::size_t add(const at::Tensor& tensor, Region region, double cost);
  // The dearest blocks first, each to the least loaded rank of its mesh.
  void assign();

  bool owned(std::size_t block) const { return blocks_[block].owned; }
  std::int64_t owner(std::size_t block) const { return blocks_[block].owner; }  // world rank; -1: every rank
  // Throws where the block's tensor has moved to other ranks than those among which its owner was chosen.
  void check_ranks(std::size_t block) const;

  struct GatherRequest {
    std::size_t block;
    at::Tensor value;      // placed as the block's tensor
    bool squares = false;  // only the sum of the squares of its elements, one number
  };
  // Per entry: the block of the value, whole, on its owner; undefined elsewhere. Collective.
  std::vector<at::Tensor> gather(const std::vector<GatherRequest>& wanted);

  struct Result {
    std::size_t block;
    at::Tensor value;   // whole on the owner; elsewhere undefined
    at::Tensor target;  // this rank's part of the whole tensor, of which the block's region is filled
    bool may_fail = false, failed = false;  // the first alike on every rank, the second told by the owner
  };
  // Collective. All values of one call that belong to tensors on the same ranks and dtype travel together. Returns
  // which failed, on all ranks of a block's mesh alike; on others none.
  std::vector<bool> scatter(const std::vector<Result>& results);

 private:
  // A rectangle that a rank holds of a block.
  struct Piece {
    at::DimVector local, inside, sizes;  // where it begins in the local tensor and in the block
  };
  struct Holder {
    int peer;
    bool sends;  // gather: one rank among those that hold the same sends
    std::vector<Piece> pieces;
  };
  struct Entry {
    at::Tensor tensor;
    Region region;
    double cost;
    bool member = true, owned = true;
    std::int64_t owner = -1;
    DeviceMesh mesh = {};              // of a DTensor: on whose ranks the owner is
    Placements placements = {};        // on it, for which the following was computed
    std::vector<Piece> mine = {};      // of this rank
    bool sends = true;                 // this rank
    std::vector<Holder> holders = {};  // the owner's list of all ranks with a part
    int owner_peer = 0;
    Communicator members = {};
    bool split = false;  // some axis splits the tensor: parts lie on several ranks
  };

  static std::vector<Piece> pieces(const Entry& block, const DeviceMesh* mesh, at::IntArrayRef coordinate);
  Communicator communicator_of(const DeviceMesh& mesh);
  void route(Entry& block);
  Entry& routed(std::size_t block);
  void send_squares(BucketedAllToAll& buckets, std::size_t bucket, const Entry& block, const at::Tensor& local,
                    at::Tensor& result);
  void send_values(BucketedAllToAll& buckets, std::size_t bucket, const Entry& block, const at::Tensor& local,
                   at::Tensor& result);

  std::vector<Entry> blocks_;
  std::vector<std::pair<std::vector<std::int64_t>, Communicator>> communicators_;  // by set of ranks
};

}  // namespace dtensor::optim
