// NCCL's collectives, messages and groups. A call checks its arguments and adds a launch to its stream. On a
// nonblocking communicator it may return ncclInProgress, as NCCL's does; then the launch is added by a later
// ncclCommGetAsyncError, and what the caller adds to the stream before that is out of order.
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "fake_cuda/device/threads.h"
#include "fake_cuda/nccl/errors.h"
#include "fake_cuda/nccl/state.h"

namespace dtensor::test::fake_cuda {
namespace {

thread_local int group_depth = 0;
thread_local std::vector<std::shared_ptr<Launch>> group;

// What an operation reads or writes: pointer, number of elements.
struct Buffer {
  const void* data;
  std::size_t count;
  bool write;
};

std::vector<Buffer> buffers_of(const Operation& o, const ncclComm& comm) {
  const auto n = comm.clique->members.size();
  const bool root = o.peer == comm.rank;
  std::vector<Buffer> list;
  const auto reads = [&](std::size_t count) { list.push_back({o.in, count, false}); };
  const auto writes = [&](std::size_t count) { list.push_back({o.out, count, true}); };
  if (o.call != Call::recv && (o.call != Call::broadcast || root))
    reads(o.count * (o.call == Call::reduce_scatter ? n : 1));
  if (o.call != Call::send && (o.call != Call::reduce || root)) writes(o.count * (o.call == Call::all_gather ? n : 1));
  return list;
}

ncclResult_t check_operation(const Operation& o, const ncclComm& comm, const CUstream_st& stream) {
  const auto n = static_cast<int>(comm.clique->members.size());
  const bool has_peer = o.is_message() || o.call == Call::broadcast || o.call == Call::reduce;
  if (has_peer && (o.peer < 0 || o.peer >= n))
    return refuse(ncclInvalidArgument, c10::str(describe(o), ": expected a rank in [0, ", n, ")"));
  if (stream.device != comm.device)
    return refuse(ncclInvalidUsage,
                  c10::str(describe(o), ": expected a stream of device ", comm.device, ", got ", name_of(stream)));
  for (const Buffer& b : buffers_of(o, comm)) {
    const auto bytes = b.count * size_of(o.dtype);
    if (bytes > 0 && Memory::instance().find(b.data, bytes, comm.device) == nullptr) {
      return refuse(ncclInvalidArgument,
                    c10::str(describe(o), ": expected ", bytes, " bytes of allocated memory on device ", comm.device));
    }
  }
  return ncclSuccess;
}

// Waits for the connections of blocking communicators, then adds the launches to their streams.
ncclResult_t launch_group(Simulator::Lock& lock) {
  auto& simulator = Simulator::instance();
  const auto launches = std::exchange(group, {});
  for (const auto& launch : launches) announce(*launch);
  ncclResult_t result = ncclSuccess;
  for (const auto& launch : launches) {
    ncclComm& comm = *launch->comm;
    const auto ready = [&] { return is_connected(*launch) || comm.gone; };
    const auto what = [&] { return "the first call of " + describe(launch->operations[0]); };
    if (comm.blocking && !ready() && simulator.wait_until(lock, what(), ready) == Outcome::failed)
      return refuse(ncclRemoteError, simulator.failure());
    if (comm.gone) return refuse(ncclInvalidUsage, describe(launch->operations[0]) + ": the communicator was aborted");
    if (comm.blocking || (ready() && !simulator.one_in(4))) {
      submit(launch);
    } else {
      comm.deferred.push_back(launch);
      result = ncclInProgress;
    }
  }
  return result;
}

ncclResult_t call(ncclComm_t comm, cudaStream_t given, const Operation& operation) {
  auto& simulator = Simulator::instance();
  auto lock = simulator.lock();
  if (const auto bad = check_usable(comm, describe(operation)); bad != ncclSuccess) return bad;
  CUstream_st& stream = given != nullptr ? *given : simulator.stream(comm->device, 0);
  if (const auto bad = check_operation(operation, *comm, stream); bad != ncclSuccess) return bad;
  auto mine = std::find_if(group.begin(), group.end(), [&](const auto& l) { return l->comm == comm; });
  if (mine == group.end()) mine = group.insert(mine, std::make_shared<Launch>(Launch{comm, &stream, {}}));
  if ((*mine)->stream != &stream)
    return refuse(ncclInvalidUsage, describe(operation) + ": expected one stream for the calls of a group");
  (*mine)->operations.push_back(operation);
  return group_depth > 0 ? ncclSuccess : launch_group(lock);
}

std::tuple<int, int, Call> connection(const Operation& o, int rank) {
  return o.is_message() ? std::tuple(rank, o.peer, o.call) : std::tuple(rank, -1, Call::all_reduce);
}

}  // namespace

void announce(const Launch& launch) {
  for (const Operation& o : launch.operations) launch.comm->clique->calls.insert(connection(o, launch.comm->rank));
  Simulator::instance().note_activity();
}

bool is_connected(const Launch& launch) {
  if (!Simulator::instance().schedule().connects_in_calls) return true;
  const auto& [clique, me] = std::pair(launch.comm->clique, launch.comm->rank);
  return std::all_of(launch.operations.begin(), launch.operations.end(), [&](const Operation& o) {
    const auto other = o.call == Call::send ? Call::recv : Call::send;
    if (o.is_message()) return clique->calls.count({o.peer, me, other}) > 0;
    for (int rank = 0; rank < static_cast<int>(clique->members.size()); ++rank) {
      if (clique->calls.count(connection(o, rank)) == 0) return false;
    }
    return true;
  });
}

void submit(const std::shared_ptr<Launch>& launch) {
  auto& simulator = Simulator::instance();
  simulator.start_operation(*launch->stream);
  for (const Operation& o : launch->operations) {
    for (const Buffer& b : buffers_of(o, *launch->comm)) {
      const auto bytes = b.count * size_of(o.dtype);
      if (bytes == 0) continue;
      const auto block = Memory::instance().find(b.data, bytes, launch->comm->device);
      if (block == nullptr) {
        simulator.report(describe(o) + ": its memory was freed before the operation was launched");
        continue;
      }
      Memory::instance().access(*block, *launch->stream, b.data, bytes, b.write, describe(o));
      launch->blocks.push_back(block);
    }
  }
  launch->left = launch->operations.size();
  launch->comm->launches.push_back(launch.get());
  simulator.push(*launch->stream, {Item::Kind::launch, nullptr, launch});
}

extern "C" {

ncclResult_t ncclGroupStart() { return ++group_depth, ncclSuccess; }

ncclResult_t ncclGroupEnd() {
  auto lock = Simulator::instance().lock();
  if (group_depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  return --group_depth > 0 ? ncclSuccess : launch_group(lock);
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Call::all_reduce, in, out, count, dtype, op});
}
ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t dtype, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Call::reduce, in, out, count, dtype, op, root});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t recvcount, ncclDataType_t dtype, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Call::reduce_scatter, in, out, recvcount, dtype, op});
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t sendcount, ncclDataType_t dtype, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(comm, stream, {Call::all_gather, in, out, sendcount, dtype});
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Call::broadcast, in, out, count, dtype, ncclSum, root});
}
ncclResult_t ncclSend(const void* in, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, stream, {Call::send, in, nullptr, count, dtype, ncclSum, peer});
}
ncclResult_t ncclRecv(void* out, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, stream, {Call::recv, nullptr, out, count, dtype, ncclSum, peer});
}

}  // extern "C"
}  // namespace dtensor::test::fake_cuda
