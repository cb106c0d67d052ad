// Communicators and operations of the simulated NCCL. A launch is what one call, or one group of calls, adds to a
// stream for one communicator. An operation moves its data when its counterparts are in launches at their queue heads.
// Requires the simulator's lock.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "fake_cuda/device/memory.h"
#include "fake_cuda/device/simulator.h"

namespace dtensor::test::fake_cuda {

enum class Call : std::uint8_t { all_reduce, reduce, reduce_scatter, all_gather, broadcast, send, recv };

struct Operation {
  Call call;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  ncclDataType_t dtype = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int peer = -1;  // the root, or the other rank
  bool done = false;

  bool is_message() const { return call == Call::send || call == Call::recv; }
  std::size_t bytes() const;  // of `count` elements
};

struct Launch {
  ncclComm* comm = nullptr;  // null after an abort
  CUstream_st* stream = nullptr;
  std::vector<Operation> operations;
  std::size_t left = 0;                             // operations that are not done
  bool running = false;                             // it has started on its device
  std::vector<std::shared_ptr<Block>> blocks = {};  // keep the memory until the end
};

// The members of one communicator.
struct Clique {
  int id = 0;
  std::vector<ncclComm*> members;  // null before a member has joined, and after its abort
  std::vector<int> devices;
  std::size_t joined = 0, leaving = 0;
  // The n-th split: color, key and result of each member.
  struct Member {
    int color = 0, key = 0;
    ncclComm* result = nullptr;
    bool called = false;
  };
  std::map<std::size_t, std::vector<Member>> splits = {};
  // Calls that members have made at least once: rank, peer (-1: a collective), and send or receive.
  std::set<std::tuple<int, int, Call>> calls = {};
};

// Moves the data of one operation of this launch that can run, chosen at random. Returns false if there is none.
bool match(Launch& launch);
// Removes a launch from its communicator, after its end or an abort.
void finish(Launch& launch);
// "ncclSend of 4 Float32 to 1 on communicator 2, rank 0 of 2; ...".
std::string describe(const Launch& launch);
std::string describe(const Operation& operation);
// The devices whose operations this launch waits for.
std::vector<int> missing_devices(const Launch& launch);

// outputs[k][i] = the reduction of inputs[j][i] over j, in the order of j; half types accumulate in float.
void reduce(const std::vector<void*>& outputs, const std::vector<const void*>& inputs, const Operation& like);
std::size_t size_of(ncclDataType_t dtype);

// Adds a launch to its stream, and checks its accesses.
void submit(const std::shared_ptr<Launch>& launch);

// NCCL connects two ranks in the first call that uses both. Such a call ends when the other ranks have called too.
void announce(const Launch& launch);
bool is_connected(const Launch& launch);

}  // namespace dtensor::test::fake_cuda

// Never destroyed, so that uses after an abort are errors.
struct ncclComm {
  std::shared_ptr<dtensor::test::fake_cuda::Clique> clique = {};  // null: a split that members have not called
  int rank = 0;
  int device = 0;
  bool blocking = true;
  bool finalized = false, gone = false;
  std::size_t splits = 0;
  std::deque<dtensor::test::fake_cuda::Launch*> launches = {};                   // oldest first
  std::vector<std::shared_ptr<dtensor::test::fake_cuda::Launch>> deferred = {};  // see calls.cpp

  bool ready() const { return clique != nullptr && clique->joined == clique->members.size(); }
};
