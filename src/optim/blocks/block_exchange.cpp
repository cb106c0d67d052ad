// Assignment of blocks to owners, the rectangles of blocks that ranks hold, and both exchanges.
#include "optim/blocks/block_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "internal/shard_segments.h"
#include "internal/simulated.h"
#include "optim/parameter_lists.h"

namespace dtensor::optim {
namespace {

std::int64_t index_of(const std::vector<std::int64_t>& ranks, std::int64_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
}

// Of the replicas of a part, the one with the owner's coordinates on replicated axes sends.
bool sends_to(const Placements& placements, const std::vector<std::int64_t>& holder,
              const std::vector<std::int64_t>& owner) {
  for (std::size_t a = 0; a < placements.size(); ++a) {
    if (!placements[a].is_shard() && holder[a] != owner[a]) return false;
  }
  return true;
}

at::Tensor rectangle(at::Tensor tensor, const at::DimVector& begin, const at::DimVector& sizes) {
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    if (tensor.size(dim) != sizes[d]) tensor = tensor.narrow(dim, begin[d], sizes[d]);
  }
  return tensor;
}

// Only the owner knows that a block could not be computed. It sends a flag to all ranks of the mesh with the values, so
// that all ranks raise the same error.
class Failures {
 public:
  void add(std::size_t result, const BlockExchange::Result& r, std::size_t bucket, const Communicator& members,
           int owner) {
    FailureFlag& group = groups_[{bucket, owner}];
    group.members = members;
    group.options = r.target.options();
    group.results.push_back(result);
    group.failed.push_back(r.failed ? 1 : 0);
  }
  void exchange(BucketedAllToAll& buckets) {
    for (auto& [from, group] : groups_) {
      const auto [bucket, owner] = from;
      group.flags = at::empty({static_cast<std::int64_t>(group.failed.size())}, group.options);
      buckets.receive(bucket, owner, group.flags);
      if (owner != group.members.rank()) continue;
      const at::Tensor flags = at::tensor(group.failed, at::kDouble).to(group.options);
      for (int peer = 0; peer < group.members.size(); ++peer) buckets.send(bucket, peer, flags);
    }
  }
  void read(std::vector<bool>& failed) const {
    for (const auto& [from, group] : groups_) {
      if (is_simulated(group.flags)) continue;  // in a dry run no block fails
      const at::Tensor flags = group.flags.to(at::TensorOptions(at::kDouble).device(at::kCPU));
      for (std::size_t i = 0; i < group.results.size(); ++i)
        failed[group.results[i]] = flags.const_data_ptr<double>()[i] != 0;
    }
  }

 private:
  struct FailureFlag {
    Communicator members;
    at::TensorOptions options;
    std::vector<std::size_t> results;
    std::vector<double> failed;  // flags of the owner
    at::Tensor flags;            // flags received
  };
  std::map<std::pair<std::size_t, int>, FailureFlag> groups_;  // by bucket and owner
};

}  // namespace

std::size_t BlockExchange::add(const at::Tensor& tensor, Region region, double cost) {
  Entry block;
  block.tensor = tensor;
  block.region = std::move(region);
  block.cost = cost;
  if (is_dtensor(tensor)) {
    block.mesh = DTensor(tensor).mesh();
    block.member = block.mesh.is_member();
  }
  blocks_.push_back(std::move(block));
  return blocks_.size() - 1;
}

void BlockExchange::assign() {
  std::vector<std::size_t> order(blocks_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return blocks_[a].cost > blocks_[b].cost; });
  std::map<std::int64_t, double> load;  // by world rank
  for (const std::size_t i : order) {
    if (!is_dtensor(blocks_[i].tensor)) continue;
    const DeviceMesh mesh = DTensor(blocks_[i].tensor).mesh();
    const auto ranks = mesh.ranks();
    blocks_[i].owner = *std::min_element(ranks.begin(), ranks.end(),
                                         [&](auto a, auto b) { return std::pair(load[a], a) < std::pair(load[b], b); });
    load[blocks_[i].owner] += blocks_[i].cost;
    blocks_[i].owned = blocks_[i].member && blocks_[i].owner == mesh.world().rank();
  }
}

// The parameter may have been on a slice of its mesh then, and each slice would have chosen its own owner.
void BlockExchange::check_ranks(std::size_t index) const {
  const Entry& block = blocks_[index];
  if (!is_dtensor(block.tensor)) return;
  const DeviceMesh mesh = DTensor(block.tensor).mesh();
  TORCH_CHECK(
      mesh == block.mesh || mesh.ranks() == block.mesh.ranks(), "optimizer: a parameter of sizes ",
      block.tensor.sizes(), " has moved from ", block.mesh.str(), " to ", mesh.str(),
      " since the optimizer was created, which distributes its work over the ranks of the first mesh; create it ",
      "after fully_shard and parallelize");
}

std::vector<BlockExchange::Piece> BlockExchange::pieces(const Entry& block, const DeviceMesh* mesh,
                                                        at::IntArrayRef coordinate) {
  std::vector<Piece> result{Piece{}};
  const auto sizes = block.tensor.sizes();
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    Segments segments{{0, sizes[d]}};
    if (mesh != nullptr) {
      segments = shard_segments(sizes[d], static_cast<std::int64_t>(d), block.placements, mesh->shape(), coordinate);
    }
    const std::int64_t begin = block.region.begin[d], end = begin + block.region.sizes[d];
    std::vector<Piece> longer;
    std::int64_t local = 0;
    for (const Segment& s : segments) {
      const std::int64_t from = std::max(begin, s.offset), to = std::min(end, s.offset + s.length);
      for (const Piece& piece : result) {
        if (from >= to) break;
        longer.push_back(piece);
        longer.back().local.push_back(local + from - s.offset);
        longer.back().inside.push_back(from - begin);
        longer.back().sizes.push_back(to - from);
      }
      local += s.length;
    }
    result = std::move(longer);
  }
  return result;
}

Communicator BlockExchange::communicator_of(const DeviceMesh& mesh) {
  std::vector<std::int64_t> ranks = mesh.ranks().vec();
  std::sort(ranks.begin(), ranks.end());
  for (const auto& [known, communicator] : communicators_) {
    if (known == ranks) return communicator;
  }
  communicators_.emplace_back(std::move(ranks), mesh.communicator());
  return communicators_.back().second;
}

void BlockExchange::route(Entry& block) {
  if (!is_dtensor(block.tensor)) {
    block.mine = pieces(block, nullptr, {});
    return;
  }
  const DTensor tensor(block.tensor);
  const DeviceMesh mesh = block.mesh = tensor.mesh();
  block.placements = tensor.placements();
  for (std::size_t a = 0; a < block.placements.size(); ++a) {
    block.split = block.split || (block.placements[a].is_shard() && mesh.shape()[a] > 1);
  }
  block.members = communicator_of(mesh);
  const auto& peers = block.members.ranks();
  const std::vector<std::int64_t> ranks = mesh.ranks().vec();
  const auto owner = mesh.coordinate_of(block.owner).value(), self = mesh.coordinate().value();
  block.owner_peer = static_cast<int>(index_of(peers, block.owner));
  block.mine = pieces(block, &mesh, self);
  block.sends = sends_to(block.placements, self, owner);
  block.holders.clear();
  for (std::size_t i = 0; block.owned && i < ranks.size(); ++i) {
    const auto coordinate = mesh.coordinate_of(ranks[i]).value();
    Holder holder{static_cast<int>(index_of(peers, ranks[i])), sends_to(block.placements, coordinate, owner), {}};
    holder.pieces = pieces(block, &mesh, coordinate);
    if (!holder.pieces.empty()) block.holders.push_back(std::move(holder));
  }
}

BlockExchange::Entry& BlockExchange::routed(std::size_t index) {
  Entry& block = blocks_[index];
  const bool known = !block.mine.empty() || block.members;
  const auto stayed = [&](const DTensor& tensor) {
    return tensor.mesh() == block.mesh && tensor.placements() == block.placements;
  };
  if (known && (!is_dtensor(block.tensor) || stayed(DTensor(block.tensor)))) return block;
  block.split = false;
  route(block);
  return block;
}

void BlockExchange::send_squares(BucketedAllToAll& buckets, std::size_t bucket, const Entry& block,
                                 const at::Tensor& local, at::Tensor& result) {
  if (block.sends && !block.mine.empty()) {
    at::Tensor sum = at::zeros({1}, local.options().dtype(at::kDouble));
    for (const Piece& p : block.mine) sum += rectangle(local, p.local, p.sizes).to(at::kDouble).square().sum();
    buckets.send(bucket, block.owner_peer, sum.to(local.scalar_type()));
  }
  if (!block.owned) return;
  const auto count = std::count_if(block.holders.begin(), block.holders.end(), [](const Holder& h) { return h.sends; });
  result = at::empty({count}, local.options());
  std::int64_t next = 0;
  for (const Holder& h : block.holders) {
    if (h.sends) buckets.receive(bucket, h.peer, result.narrow(0, next++, 1));
  }
}

void BlockExchange::send_values(BucketedAllToAll& buckets, std::size_t bucket, const Entry& block,
                                const at::Tensor& local, at::Tensor& result) {
  if (block.sends) {
    for (const Piece& p : block.mine) buckets.send(bucket, block.owner_peer, rectangle(local, p.local, p.sizes));
  }
  if (!block.owned) return;
  result = at::empty(block.region.sizes, local.options());
  for (const Holder& h : block.holders) {
    if (!h.sends) continue;
    for (const Piece& p : h.pieces) buckets.receive(bucket, h.peer, rectangle(result, p.inside, p.sizes));
  }
}

std::vector<at::Tensor> BlockExchange::gather(const std::vector<GatherRequest>& wanted) {
  std::vector<at::Tensor> results(wanted.size());
  BucketedAllToAll buckets;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const GatherRequest& w = wanted[i];
    if (!blocks_[w.block].member) continue;
    const Entry& block = routed(w.block);
    if (!is_dtensor(block.tensor)) {
      results[i] = rectangle(w.value, block.region.begin, block.region.sizes);
      if (w.squares) results[i] = results[i].to(at::kDouble).square().sum().to(w.value.scalar_type()).view({1});
      continue;
    }
    const DTensor value(w.value);
    TORCH_CHECK(same_local_shards(value.placements(), block.placements, value.mesh().shape()),
                "optimizer: expected a value with the placements of its parameter, got ", value.spec_str(),
                ", parameter ", DTensor(block.tensor).spec_str());
    const at::Tensor local = value.to_local();
    const std::size_t bucket = buckets.bucket(block.members, local.scalar_type(), block.split);
    (w.squares ? send_squares(buckets, bucket, block, local, results[i])
               : send_values(buckets, bucket, block, local, results[i]));
  }
  buckets.run();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].squares && results[i].defined()) results[i] = results[i].sum();
  }
  return results;
}

std::vector<bool> BlockExchange::scatter(const std::vector<Result>& results) {
  std::vector<bool> failed(results.size());
  BucketedAllToAll buckets;
  Failures failures;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Result& r = results[i];
    if (!blocks_[r.block].member) continue;
    const Entry& block = routed(r.block);
    if (!is_dtensor(block.tensor)) {
      failed[i] = r.failed;
      if (!r.failed) rectangle(r.target, block.region.begin, block.region.sizes).copy_(r.value);
      continue;
    }
    const std::size_t bucket = buckets.bucket(block.members, r.target.scalar_type(), block.members.size() > 1);
    for (const Piece& p : block.mine) buckets.receive(bucket, block.owner_peer, rectangle(r.target, p.local, p.sizes));
    if (r.may_fail) failures.add(i, r, bucket, block.members, block.owner_peer);
    if (!block.owned) continue;
    for (const Holder& h : block.holders) {
      for (const Piece& p : h.pieces) buckets.send(bucket, h.peer, rectangle(r.value, p.inside, p.sizes));
    }
  }
  failures.exchange(buckets);
  buckets.run();
  failures.read(failed);
  return failed;
}

}  // namespace dtensor::optim
