// What travels on a stream: a frame, and after some kinds as many bytes as it says.
#pragma once

#include <cstdint>
#include <type_traits>

namespace dtensor::sockets {

struct Frame {
  enum Kind : std::uint8_t {
    whole,   // a short message, with its bytes
    offer,   // a long one: `id` of the sender, and where its bytes are in the sender's memory
    accept,  // the answer where that memory cannot be read: send it as `address` (the receiver's id)
    bytes,   // the long message, to the receiver's `id`, with its bytes
    taken,   // the receiver has read the sender's memory
    word     // of the side channel, with its text
  };
  Kind kind = whole;
  std::uint8_t channel = 0;
  std::int32_t tag = 0;
  std::uint64_t size = 0;
  std::uint64_t id = 0;
  std::uint64_t address = 0;
  bool has_bytes() const { return kind == whole || kind == bytes || kind == word; }
};
static_assert(std::is_trivially_copyable_v<Frame> && sizeof(Frame) == 32);

}  // namespace dtensor::sockets
