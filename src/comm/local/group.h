// The shared state of the members of one thread communicator.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/local/threads/wait_set.h"
#include "comm/local/threads/world.h"
#include "dtensor/comm_backend.h"

namespace dtensor::local {

class Mailbox;

// A member's call, published for the others: they read its tensors directly and, in all_reduce, write to them.
struct PublishedCall {
  CollectiveCall call;
  at::TensorList outputs, inputs;
};

class Group {
 public:
  Group(std::shared_ptr<World> world, std::vector<std::int64_t> ranks, std::string label);

  World& world() const { return *world_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<std::int64_t>& ranks() const { return ranks_; }
  const std::string& label() const { return label_; }
  WaitSet& waits() { return waits_; }
  const std::shared_ptr<Mailbox>& mailbox() const { return mailbox_; }

  // Runs one collective as member `me`: publishes `mine`, waits for all members, compares the calls and runs `move`,
  // which may access the tensors of peers. If `again`, then waits until all members are done. An exception fails the
  // world; it propagates only after no peer accesses this member's tensors any more.
  void run_collective(int me, const PublishedCall& mine, c10::function_ref<void()> move, bool again = true);

  // Called in `move`: the call that member `i` published for this collective.
  const PublishedCall& published(int i, std::uint64_t sequence) const { return members_[i].slots[sequence & 1]; }

  // The group of these members. The n-th call with the same list returns the same group on each member.
  std::shared_ptr<Group> subgroup(int me, const std::vector<int>& members, const std::string& label);

  std::string describe_call(const PublishedCall& p) const;

 private:
  struct alignas(64) Member {
    std::atomic<std::uint64_t> arrivals{0};
    std::atomic<bool> in_collective{false};  // may touch the tensors of peers
    std::array<PublishedCall, 2> slots;      // by parity: a peer may still read the last call while the next is written
    std::map<std::vector<int>, int> subgroup_requests;  // number of subgroup() calls of this member per list
  };
  struct Pending {
    std::shared_ptr<Group> group;
    std::size_t fetched = 0;
  };

  void rendezvous(int me, const PublishedCall& mine);
  void compare(int me, const PublishedCall& mine);
  const PublishedCall& latest(int i) const;
  std::string describe_mismatch() const;
  std::vector<std::int64_t> missing(std::uint64_t arrivals) const;
  void withdraw_call(int me, const PublishedCall& mine);

  std::shared_ptr<World> world_;
  std::vector<std::int64_t> ranks_;
  std::string label_;
  WaitSet waits_;
  std::shared_ptr<Mailbox> mailbox_;
  std::vector<Member> members_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<std::uint64_t> generation_{0};
  std::mutex subgroups_mutex_;
  std::map<std::pair<std::vector<int>, int>, Pending> subgroups_;
};

}  // namespace dtensor::local
