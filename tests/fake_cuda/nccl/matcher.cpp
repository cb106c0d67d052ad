// Matches operations of different ranks. NCCL itself compares nothing: what is an error here blocks there, or moves
// wrong bytes.
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fake_cuda/nccl/state.h"

namespace dtensor::test::fake_cuda {
namespace {

constexpr const char* kCalls[] = {"ncclAllReduce", "ncclReduce", "ncclReduceScatter", "ncclAllGather",
                                  "ncclBroadcast", "ncclSend",   "ncclRecv"};
constexpr const char* kTypes[] = {"Int8",    "Uint8",   "Int32",   "Uint32",   "Int64",      "Uint64",
                                  "Float16", "Float32", "Float64", "Bfloat16", "Float8e4m3", "Float8e5m2"};
constexpr const char* kOps[] = {"sum", "product", "max", "min", "average"};

bool reduces(Call call) { return call <= Call::reduce_scatter; }
bool has_root(Call call) { return call == Call::reduce || call == Call::broadcast; }

// The launch of this member whose operations can run.
Launch* active_launch(const ncclComm* comm) {
  return comm != nullptr && !comm->launches.empty() && comm->launches.front()->running ? comm->launches.front()
                                                                                       : nullptr;
}

template <class Wanted>
Operation* first_pending(Launch* launch, Wanted&& wanted) {
  if (launch == nullptr) return nullptr;
  const auto found = std::find_if(launch->operations.begin(), launch->operations.end(),
                                  [&](const Operation& o) { return !o.done && wanted(o); });
  return found == launch->operations.end() ? nullptr : &*found;
}

Operation* pending_message(Launch* launch, Call call, int peer) {
  return first_pending(launch, [&](const Operation& o) { return o.call == call && o.peer == peer; });
}
Operation* pending_collective(Launch* launch) {
  return first_pending(launch, [](const Operation& o) { return !o.is_message(); });
}

void complete(Launch& launch, Operation& operation) {
  operation.done = true;
  --launch.left;
}

// "rank 0: ...; rank 1: ...".
std::string both(const ncclComm& a, const Operation& x, const ncclComm& b, const Operation& y) {
  return c10::str("on communicator ", a.clique->id, " of devices ", c10::Join(", ", a.clique->devices), ": rank ",
                  a.rank, " called ", describe(x), ", rank ", b.rank, " called ", describe(y));
}

bool match_message(Launch& mine, Operation& one) {
  auto& members = mine.comm->clique->members;
  const int me = mine.comm->rank;
  const auto other = one.call == Call::send ? Call::recv : Call::send;
  if (pending_message(&mine, one.call, one.peer) != &one) return false;  // messages of a pair keep their order
  ncclComm* peer = members[static_cast<std::size_t>(one.peer)];
  Launch* theirs = active_launch(peer);
  Operation* two = pending_message(theirs, other, me);
  if (two == nullptr) return false;
  if (one.bytes() != two->bytes() || one.dtype != two->dtype) {
    Simulator::instance().fail("message mismatch " + both(*mine.comm, one, *peer, *two));
    return false;
  }
  const Operation &from = one.call == Call::send ? one : *two, &to = one.call == Call::send ? *two : one;
  if (from.bytes() > 0) std::memmove(to.out, from.in, from.bytes());
  complete(mine, one);
  complete(*theirs, *two);
  return true;
}

void move_collective(const std::vector<Operation*>& all) {
  const Operation& first = *all[0];
  const auto bytes = first.bytes();
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (const Operation* o : all) inputs.push_back(o->in), outputs.push_back(o->out);
  const auto at = [](auto* data, std::size_t offset) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>, const char, char>;
    return static_cast<Byte*>(data) + offset;
  };
  if (bytes == 0) return;
  switch (first.call) {
    case Call::all_reduce:
      return reduce(outputs, inputs, first);
    case Call::reduce:
      return reduce({outputs[static_cast<std::size_t>(first.peer)]}, inputs, first);
    case Call::reduce_scatter:
      for (std::size_t k = 0; k < all.size(); ++k) {
        auto parts = inputs;
        for (auto& part : parts) part = at(part, k * bytes);
        reduce({outputs[k]}, parts, first);
      }
      return;
    case Call::all_gather:
      for (void* out : outputs) {
        for (std::size_t k = 0; k < all.size(); ++k) std::memmove(at(out, k * bytes), inputs[k], bytes);
      }
      return;
    default:  // a broadcast
      for (void* out : outputs) std::memmove(out, inputs[static_cast<std::size_t>(first.peer)], bytes);
  }
}

// Moves the data if the next collective of every member can run.
bool match_collective(Launch& mine) {
  std::vector<Launch*> launches;
  std::vector<Operation*> all;
  for (const ncclComm* member : mine.comm->clique->members) {
    launches.push_back(active_launch(member));
    all.push_back(pending_collective(launches.back()));
  }
  const Operation* own = pending_collective(&mine);
  if (own == nullptr) return false;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == nullptr) continue;
    const Operation &a = *own, &b = *all[i];
    const bool same = a.call == b.call && a.count == b.count && a.dtype == b.dtype &&
                      (!reduces(a.call) || a.op == b.op) && (!has_root(a.call) || a.peer == b.peer);
    if (same) continue;
    Simulator::instance().fail("collective mismatch " + both(*mine.comm, a, *launches[i]->comm, b));
    return false;
  }
  if (std::count(all.begin(), all.end(), nullptr) > 0) return false;
  move_collective(all);
  for (std::size_t i = 0; i < all.size(); ++i) complete(*launches[i], *all[i]);
  return true;
}

}  // namespace

std::size_t Operation::bytes() const { return count * size_of(dtype); }

// A launch starts when it is the oldest of its communicator, at the head of its stream.
bool match(Launch& launch) {
  if (launch.comm == nullptr || launch.comm->launches.front() != &launch) return false;
  if (!launch.running) return launch.running = Simulator::instance().start_launch(launch.stream->device);
  if (match_collective(launch)) return true;
  const auto n = launch.operations.size(), start = Simulator::instance().random() % n;
  for (std::size_t i = 0; i < n; ++i) {
    Operation& operation = launch.operations[(start + i) % n];
    if (!operation.done && operation.is_message() && match_message(launch, operation)) return true;
  }
  return false;
}

void finish(Launch& launch) {
  if (std::exchange(launch.running, false)) Simulator::instance().end_launch(launch.stream->device);
  if (launch.comm != nullptr) std::erase(launch.comm->launches, &launch);
  launch.comm = nullptr;
  launch.left = 0;
  launch.blocks.clear();
}

std::string describe(const Operation& o) {
  auto text = c10::str(kCalls[static_cast<int>(o.call)], " of ", o.count, ' ', kTypes[o.dtype]);
  if (reduces(o.call)) text += c10::str(", ", kOps[o.op]);
  if (has_root(o.call)) text += c10::str(", root ", o.peer);
  if (o.is_message()) text += c10::str(o.call == Call::send ? " to rank " : " from rank ", o.peer);
  return text;
}

std::string describe(const Launch& launch) {
  if (launch.comm == nullptr) return "an operation of an aborted communicator";
  std::string text;
  for (const Operation& o : launch.operations) {
    if (!o.done) text += (text.empty() ? "" : "; ") + describe(o);
  }
  const Clique& clique = *launch.comm->clique;
  text += c10::str(" on communicator ", clique.id, " of devices ", c10::Join(", ", clique.devices), " (rank ",
                   launch.comm->rank, ")");
  if (launch.comm->launches.front() != &launch) text += ", behind an older operation of that communicator";
  if (!launch.running) text += ", not started";
  return text;
}

std::vector<int> missing_devices(const Launch& launch) {
  if (launch.comm == nullptr) return {};
  const Clique& clique = *launch.comm->clique;
  std::vector<int> devices;
  for (std::size_t i = 0; i < clique.members.size(); ++i) {
    Launch* theirs = active_launch(clique.members[i]);
    const bool waits = std::any_of(launch.operations.begin(), launch.operations.end(), [&](const Operation& o) {
      if (o.done) return false;
      if (!o.is_message()) return pending_collective(theirs) == nullptr;
      const auto other = o.call == Call::send ? Call::recv : Call::send;
      return o.peer == static_cast<int>(i) && pending_message(theirs, other, launch.comm->rank) == nullptr;
    });
    if (waits) devices.push_back(clique.devices[i]);
  }
  return devices;
}

}  // namespace dtensor::test::fake_cuda
