// What travels on a stream: a frame, and after some kinds as many bytes as it says.
#pragma once

#include <cstdint>
#include <type_traits>

namespace dtensor::sockets {

struct Frame {
  enum Kind : std::uint8_t {
    eager,            // a short message, with its bytes
    request_to_send,  // a long one: `id` of the sender, and where its bytes are in the sender's memory
    clear_to_send,    // the answer where that memory cannot be read: send it as `address` (the receiver's id)
    data,             // the long message, to the receiver's `id`, with its bytes
    acknowledge,      // the receiver has read the sender's memory
    control           // of the side channel, with its text
  };
  Kind kind = eager;
  std::uint8_t channel = 0;
  std::int32_t tag = 0;
  std::uint64_t size = 0;
  std::uint64_t id = 0;
  std::uint64_t address = 0;
  bool has_bytes() const { return kind == eager || kind == data || kind == control; }
};
static_assert(std::is_trivially_copyable_v<Frame> && sizeof(Frame) == 32);

}  // namespace dtensor::sockets
