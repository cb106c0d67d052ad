// A frame of a stream, followed for some kinds by `size` bytes. What a peer may send is agreed: short messages are at
// most kShort, long ones have the size of the posted receive, control messages are at most kLongestControl.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "comm/p2p/transport.h"

namespace dtensor::sockets {

inline constexpr std::uint64_t kShort = 16384;  // messages up to this size are sent at once

struct Frame {
  enum Kind : std::uint8_t {
    eager,            // a short message, followed by its bytes
    request_to_send,  // a long message: the sender's `id`, and the address of its bytes in the sender's memory
    clear_to_send,    // the answer if that memory cannot be read: send it with `address` as the receiver's id
    data,             // the long message for the receiver's `id`, followed by its bytes
    acknowledge,      // the receiver has read the sender's memory
    control           // a message of the side channel, followed by its text
  };
  Kind kind = eager;
  std::uint8_t channel = 0;
  std::int32_t tag = 0;
  std::uint64_t size = 0;
  std::uint64_t id = 0;
  std::uint64_t address = 0;
  bool has_bytes() const { return kind == eager || kind == data || kind == control; }
};

// What is wrong with a frame that no sender of this version makes; empty for a valid one. Decides what can be decided
// without the state of the receiver.
inline std::string frame_error(const Frame& frame) {
  const auto outside = [&](const char* what, std::uint64_t least, std::uint64_t most) {
    if (frame.size >= least && frame.size <= most) return std::string();
    return std::string(what) + " of " + std::to_string(frame.size) + " bytes, expected " + std::to_string(least) +
           " to " + std::to_string(most);
  };
  if (frame.channel > static_cast<std::uint8_t>(p2p::Channel::histories))
    return "a message on channel " + std::to_string(frame.channel);
  switch (frame.kind) {
    case Frame::eager:
      return outside("a short message", 1, kShort);
    case Frame::request_to_send:
      return outside("a long message", kShort + 1, std::uint64_t{1} << 62);
    case Frame::control:
      return outside("a control message", 0, p2p::kLongestControl);
    case Frame::clear_to_send:
    case Frame::acknowledge:
      return outside("an answer", 0, 0);
    case Frame::data:
      return "";
  }
  return "a frame of unknown kind " + std::to_string(frame.kind);
}

static_assert(std::is_trivially_copyable_v<Frame> && sizeof(Frame) == 32);

}  // namespace dtensor::sockets
