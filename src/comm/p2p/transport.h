// What the pairwise engine needs of whatever carries bytes between processes: MPI (src/comm/mpi) or sockets
// (src/comm/socket).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::p2p {

// Messages of two channels never meet. Those of one with equal sender and tag arrive in the order in which they were
// sent.
enum class Channel : std::uint8_t {
  collectives,
  messages,  // headers of messages, or messages without headers
  payloads,  // what such a header announces
  histories  // what ranks have called, where they find that they disagree
};

// Messages under way on one channel with one tag. Destroyed before it is through, it leaves them to the transport,
// which may use their memory for as long as the process lives.
class Batch {
 public:
  virtual ~Batch() = default;
  // `peer`: its rank. Nothing is sent for 0 bytes. The memory stays until test() says that all is through.
  virtual void send(const void* data, std::int64_t bytes, int peer) = 0;
  virtual void recv(void* data, std::int64_t bytes, int peer) = 0;
  virtual bool test() = 0;                                // moves what can be moved; whether all is through
  virtual std::vector<std::int64_t> missing() const = 0;  // peers of what is not through, sorted, each once
};

// A word on the side channel, on which ranks tell each other that they failed or left.
struct ControlMessage {
  int from = 0;
  int tag = 0;
  std::string text;
};

// Callable from any thread. Errors of the carrier itself are CommErrors.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;  // of the backend
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_size() const = 0;  // processes on this host; 0: unknown
  virtual int max_tag() const = 0;
  virtual std::unique_ptr<Batch> batch(Channel channel, int tag) = 0;
  virtual void send_control(int peer, int tag, const std::string& text) = 0;  // returns at once; up to a few kilobytes
  virtual std::optional<ControlMessage> poll_control() = 0;                   // what has come, if anything has
  // Why this peer can say nothing any more; empty: it can, as far as is known.
  virtual std::string disconnect_reason(int) { return ""; }
  // Between two tests of a rank that has waited this long: gives way to others. `oversubscribed`: this host has more
  // processes than cores.
  virtual void pause(std::chrono::nanoseconds waited, bool oversubscribed) = 0;
  virtual void finish() = 0;                // every rank has left; nothing comes after it
  [[noreturn]] virtual void abort() = 0;    // ends this process
  virtual bool abort_ends_all() const = 0;  // the others too, whatever they do
};

}  // namespace dtensor::p2p
