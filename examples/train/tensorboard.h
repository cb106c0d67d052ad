// Event files for TensorBoard: records of TensorFlow's framing (length, masked CRC-32C of it, bytes, masked CRC-32C of
// those) that hold protocol buffers of type Event with a scalar each. Written by hand: two messages are no reason for a
// dependency. https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace train {

class TensorBoard {
 public:
  // A new file in that folder, which is made; empty: none. Those of earlier runs stay beside it, and are shown as one
  // curve. Throws std::runtime_error where it cannot be made.
  explicit TensorBoard(const std::string& folder);
  void add(const std::string& tag, std::int64_t step, double value);
  void flush();  // to be followed while it is written
  // Throws std::runtime_error where not all was written.
  void close();

 private:
  void write(std::string_view event);

  std::string path_;
  std::ofstream out_;
};

// The CRC-32C (Castagnoli) of RFC 3720, appendix B.4.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace train
