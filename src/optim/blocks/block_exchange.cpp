// Assignment of blocks to owners, and both exchanges as plans of transfers.
#include "optim/blocks/block_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>

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

at::Tensor squared_norm(const at::Tensor& part) { return part.to(at::kDouble).square().sum().view({1}); }

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
  } else {  // the block is a view
    const Region full = shard_region(tensor.sizes(), {}, {}, {});
    block.gather = {{{0, block.region}}, {}, full, {}};
    block.scatter = {{}, {{0, block.region}}, {}, full};
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
  const DTensor tensor(block.tensor);
  const DeviceMesh mesh = block.mesh = tensor.mesh();
  block.placements = tensor.placements();
  block.split = false;
  for (std::size_t a = 0; a < block.placements.size(); ++a) {
    block.split = block.split || (block.placements[a].is_shard() && mesh.shape()[a] > 1);
  }
  block.members = communicator_of(mesh);
  const auto& peers = block.members.ranks();
  const auto owner = mesh.coordinate_of(block.owner).value(), self = mesh.coordinate().value();
  const auto shard_at = [&](at::IntArrayRef coordinate) {
    return shard_region(block.tensor.sizes(), block.placements, mesh.shape(), coordinate);
  };
  block.owner_peer = static_cast<int>(index_of(peers, block.owner));
  block.gather = {{}, {}, shard_at(self), block.region};
  block.scatter = {{}, {}, block.region, shard_at(self)};
  if (const Region mine = intersection(block.gather.held, block.region); mine.numel() > 0) {
    if (sends_to(block.placements, self, owner)) block.gather.sends.push_back({block.owner_peer, mine});
    block.scatter.receives.push_back({block.owner_peer, mine});
  }
  for (std::size_t i = 0; block.owned && i < mesh.ranks().size(); ++i) {
    const std::int64_t rank = mesh.ranks()[i];
    const auto coordinate = mesh.coordinate_of(rank).value();
    const Transfer part{index_of(peers, rank), intersection(shard_at(coordinate), block.region)};
    if (part.part.numel() == 0) continue;
    if (sends_to(block.placements, coordinate, owner)) block.gather.receives.push_back(part);
    block.scatter.sends.push_back(part);
  }
}

BlockExchange::Entry& BlockExchange::routed(std::size_t index) {
  Entry& block = blocks_[index];
  if (!is_dtensor(block.tensor)) return block;
  const DTensor tensor(block.tensor);
  if (!block.members || tensor.mesh() != block.mesh || tensor.placements() != block.placements) route(block);
  return block;
}

at::Tensor BlockExchange::gather_squares(BucketedAllToAll& buckets, std::size_t bucket, const Entry& block,
                                         const at::Tensor& local) {
  const RegionExchange sent({block.gather.sends, {}, block.gather.held, {}}, local, {});
  for (const at::Tensor& part : sent.pieces())
    buckets.send(bucket, block.owner_peer, squared_norm(part).to(local.scalar_type()));
  if (!block.owned) return {};
  const at::Tensor result = at::empty({std::ssize(block.gather.receives)}, local.options());
  for (std::int64_t i = 0; i < result.numel(); ++i) {
    const auto peer = block.gather.receives[static_cast<std::size_t>(i)].peer;
    buckets.receive(bucket, static_cast<int>(peer), result.narrow(0, i, 1));
  }
  return result;
}

std::vector<at::Tensor> BlockExchange::gather(const std::vector<GatherRequest>& wanted) {
  std::vector<at::Tensor> results(wanted.size());
  std::vector<RegionExchange> exchanges;
  BucketedAllToAll buckets;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const GatherRequest& w = wanted[i];
    if (!blocks_[w.block].member) continue;
    const Entry& block = routed(w.block);
    if (!is_dtensor(block.tensor)) {
      results[i] = RegionExchange(block.gather, w.value, {}).pieces()[0];
      if (w.squares) results[i] = squared_norm(results[i]).to(w.value.scalar_type());
      continue;
    }
    const DTensor value(w.value);
    TORCH_CHECK(same_local_shards(value.placements(), block.placements, value.mesh().shape()),
                "optimizer: expected a value with the placements of its parameter, got ", value.spec_str(),
                ", parameter ", DTensor(block.tensor).spec_str());
    const at::Tensor local = value.to_local();
    const std::size_t bucket = buckets.bucket(block.members, local.scalar_type(), block.split);
    if (w.squares) {
      results[i] = gather_squares(buckets, bucket, block, local);
      continue;
    }
    if (block.owned) results[i] = at::empty(block.region.sizes(), local.options());
    exchanges.emplace_back(block.gather, local, results[i]).join(buckets, bucket);
  }
  buckets.run();
  for (const RegionExchange& exchange : exchanges) exchange.finish();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].squares && results[i].defined()) results[i] = results[i].sum();
  }
  return results;
}

std::vector<bool> BlockExchange::scatter(const std::vector<Result>& results) {
  std::vector<bool> failed(results.size());
  std::vector<RegionExchange> exchanges;
  BucketedAllToAll buckets;
  Failures failures;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Result& r = results[i];
    if (!blocks_[r.block].member) continue;
    const Entry& block = routed(r.block);
    if (!is_dtensor(block.tensor)) {
      failed[i] = r.failed;
      if (!r.failed) RegionExchange(block.scatter, {}, r.target).targets()[0].copy_(r.value);
      continue;
    }
    const std::size_t bucket = buckets.bucket(block.members, r.target.scalar_type(), block.members.size() > 1);
    exchanges.emplace_back(block.scatter, r.value, r.target).join(buckets, bucket);
    if (r.may_fail) failures.add(i, r, bucket, block.members, block.owner_peer);
  }
  failures.exchange(buckets);
  buckets.run();
  for (const RegionExchange& exchange : exchanges) exchange.finish();
  failures.read(failed);
  return failed;
}

}  // namespace dtensor::optim
