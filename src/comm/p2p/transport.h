// Interface of point-to-point transports between processes: MPI (src/comm/mpi) and sockets (src/comm/socket).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::p2p {

// Messages of different channels never match. Those of one channel with equal sender and tag arrive in the order in
// which they were sent.
enum class Channel : std::uint8_t {
  collectives,
  messages,  // headers of messages, or messages without headers
  payloads,  // data announced by such a header
  histories  // call histories, after ranks found that they disagree
};

// Messages in progress on one channel with one tag. If destroyed early, the transport may use their memory until the
// process ends.
class Batch {
 public:
  virtual ~Batch() = default;
  // `peer` is a rank. Messages of 0 bytes are not sent. The memory must live until test() returns true.
  virtual void send(const void* data, std::int64_t bytes, int peer) = 0;
  virtual void recv(void* data, std::int64_t bytes, int peer) = 0;
  virtual bool test() = 0;                                // makes progress; returns whether all messages are complete
  virtual std::vector<std::int64_t> missing() const = 0;  // peers of incomplete messages, sorted and distinct
};

inline constexpr std::size_t kLongestControl = 3500;  // bytes, sent at once, without the receiver

// A message on the side channel, on which ranks report that they failed or left.
struct ControlMessage {
  int from = 0;
  int tag = 0;
  std::string text;
};

// Callable from any thread. Errors of the transport itself are CommErrors.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;  // name of the backend
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_size() const = 0;  // processes on this host; 0: unknown
  virtual int cores() const = 0;       // of this host, for this rank
  virtual int max_tag() const = 0;
  virtual std::unique_ptr<Batch> batch(Channel channel, int tag) = 0;
  // Does not block. `text` has at most kLongestControl bytes.
  virtual void send_control(int peer, int tag, const std::string& text) = 0;
  virtual std::optional<ControlMessage> poll_control() = 0;  // the next received message, if any
  // Whether send_control() sends at once from any thread, on all ranks. Else a message may wait for another thread.
  virtual bool sends_from_any_thread() const { return true; }
  // The reason why this peer cannot send any more ("has died: ..."); empty while it can, as far as is known.
  virtual std::string disconnect_reason(int) { return ""; }
  // Called between two tests of a rank that has waited this long, to yield to others. `oversubscribed`: this host has
  // more processes than cores.
  virtual void pause(std::chrono::nanoseconds waited, bool oversubscribed) = 0;
  virtual void finish() = 0;                // every rank has left; the last call
  [[noreturn]] virtual void abort() = 0;    // ends this process
  virtual bool abort_ends_all() const = 0;  // whether abort() also ends the other processes
};

}  // namespace dtensor::p2p
