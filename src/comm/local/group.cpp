// The rendezvous of thread ranks. Each member publishes its call and reads those of the others. Comparing calls costs
// a few loads, so it is always on. `in_collective` is set from before a member arrives until it no longer accesses its
// peers' tensors. A member that throws waits until no peer can still read its tensors.
#include "comm/local/group.h"

#include <thread>

#include "comm/error_messages.h"
#include "comm/local/mailbox.h"
#include "comm/record/call_history.h"
#include "comm/record/caller.h"
#include "comm/waiting/gil_release.h"

namespace dtensor::local {

Group::Group(std::shared_ptr<World> world, std::vector<std::int64_t> ranks, std::string label)
    : world_(std::move(world)),
      ranks_(std::move(ranks)),
      label_(std::move(label)),
      waits_(*world_),
      mailbox_(std::make_shared<Mailbox>()),
      members_(ranks_.size()) {}

std::string Group::describe_call(const PublishedCall& p) const {
  return describe(p.call, p.outputs, p.inputs) + " on " +
         describe_group(p.call.label ? *p.call.label : label_, ranks_) + caller_text(p.call);
}

std::vector<std::int64_t> Group::missing(std::uint64_t arrivals) const {
  std::vector<std::int64_t> ranks;
  for (int i = 0; i < size(); ++i) {
    if (members_[i].arrivals.load() < arrivals) ranks.push_back(ranks_[i]);
  }
  return ranks;
}

void Group::rendezvous(int me, const PublishedCall& mine) {
  const std::uint64_t generation = generation_.load();
  const std::uint64_t arrivals = members_[me].arrivals.fetch_add(1) + 1;
  if (arrived_.fetch_add(1) + 1 == size()) {
    arrived_.store(0);
    generation_.store(generation + 1);
    waits_.wake();
    return;
  }
  const auto operation = [&] { return describe_call(mine); };
  const auto absent = [&] { return missing(arrivals); };
  waits_.wait({ranks_[me], operation, absent}, [&] { return generation_.load() != generation; });
}

namespace {
bool agree(const CollectiveCall& a, const CollectiveCall& b) {
  return a.kind == b.kind && a.op == b.op && a.dtype == b.dtype && a.peer == b.peer && a.sequence == b.sequence &&
         same_operators(a, b);
}
}  // namespace

namespace {
bool same_sizes(at::TensorList a, at::TensorList b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type();
  });
}
}  // namespace

namespace {
// Host memory is accessed directly, device memory is not.
bool same_device_types(const PublishedCall& a, const PublishedCall& b) {
  const auto device = [](const PublishedCall& p) {
    const auto list = p.outputs.empty() ? p.inputs : p.outputs;
    return list.empty() ? c10::kCPU : list[0].device().type();
  };
  return device(a) == device(b);
}
}  // namespace

// The latest call in the two slots. Members with different sequence numbers publish in different slots, which may
// still contain older calls.
const PublishedCall& Group::latest(int i) const {
  const auto& [even, odd] = members_[i].slots;
  return even.call.sequence > odd.call.sequence ? even : odd;
}

std::string Group::describe_mismatch() const {
  const auto& label = latest(0).call.label;
  std::string out =
      world_->failed_before(ranks_) + "ranks disagree on " + describe_group(label ? *label : label_, ranks_) + ": ";
  std::vector<RankCalls> members;
  for (int i = 0; i < size(); ++i) members.push_back(calls_of(ranks_[i], latest(i).call));
  out += describe_difference(members);
  for (int i = 0; i < size(); ++i) {
    const PublishedCall& p = latest(i);
    out += (i > 0 ? "; rank " : "rank ") + std::to_string(ranks_[i]) + " called ";
    out += describe(p.call, p.outputs, p.inputs) + caller_text(p.call);
  }
  return out + world_->recent(ranks_);
}

// Compares the sizes that each kind pairs up; each member checks what it is going to read.
void Group::compare(int me, const PublishedCall& mine) {
  const std::uint64_t sequence = mine.call.sequence;
  bool good = true;
  for (int i = 0; i < size() && good; ++i) {
    const PublishedCall& p = published(i, sequence);
    good = agree(mine.call, p.call) && mine.outputs.size() == p.outputs.size() && same_device_types(mine, p);
    if (!good) break;
    switch (mine.call.kind) {
      case CollectiveKind::all_gather:
        good = same_sizes(mine.outputs.slice(i * p.inputs.size(), p.inputs.size()), p.inputs);
        break;
      case CollectiveKind::reduce_scatter:
        good = same_sizes(mine.outputs, p.inputs.slice(me * mine.outputs.size(), mine.outputs.size()));
        break;
      case CollectiveKind::all_to_all:
        good = mine.outputs[i].sizes() == p.inputs[me].sizes();
        break;
      case CollectiveKind::all_reduce:
      case CollectiveKind::broadcast:
        good = same_sizes(mine.outputs, p.outputs);
        break;
      default:
        break;
    }
  }
  if (good) return;
  world_->fail(describe_mismatch());
  world_->throw_failure();
}

void Group::withdraw_call(int me, const PublishedCall& mine) {
  world_->fail("rank " + std::to_string(ranks_[me]) + " failed in " + describe_call(mine) + ": " +
               current_exception_text());
  members_[me].in_collective.store(false);
  waits_.wake();
  const GilRelease others_may_run;  // others may need it to leave
  for (const auto& member : members_) {
    while (member.in_collective.load()) std::this_thread::yield();
  }
}

void Group::run_collective(int me, const PublishedCall& mine, c10::function_ref<void()> move, bool again) {
  Member& member = members_[me];
  // Set before the failure is tested: a member that leaves because of a failure waits for all members that are inside,
  // so no member may enter unseen.
  if (member.in_collective.exchange(true)) {
    world_->fail(two_threads(ranks_[me], describe_call(mine)));
    world_->throw_failure();
  }
  try {
    if (world_->failed()) world_->throw_failure();
    member.slots[mine.call.sequence & 1] = mine;
    rendezvous(me, mine);
    compare(me, mine);
    move();
    member.in_collective.store(false);
    if (again) rendezvous(me, mine);
  } catch (...) {
    withdraw_call(me, mine);
    throw;
  }
}

std::shared_ptr<Group> Group::subgroup(int me, const std::vector<int>& members, const std::string& label) {
  const int nth = members_[me].subgroup_requests[members]++;
  std::lock_guard lock(subgroups_mutex_);
  auto [entry, fresh] = subgroups_.try_emplace({members, nth});
  Pending& pending = entry->second;
  if (fresh) {
    std::vector<std::int64_t> ranks;
    for (int m : members) ranks.push_back(ranks_[m]);
    pending.group = std::make_shared<Group>(world_, std::move(ranks), label);
  }
  auto group = pending.group;
  if (++pending.fetched == members.size()) subgroups_.erase(entry);
  return group;
}

}  // namespace dtensor::local
