// A frame of a stream, followed for some kinds by `size` bytes.
#pragma once

#include <cstdint>
#include <type_traits>

namespace dtensor::sockets {

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
static_assert(std::is_trivially_copyable_v<Frame> && sizeof(Frame) == 32);

}  // namespace dtensor::sockets
