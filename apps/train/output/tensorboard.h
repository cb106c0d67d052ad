// Event files for TensorBoard: TFRecord files (length, masked CRC-32C of it, bytes, masked CRC-32C of them) with
// protocol buffers of type Event, each with a scalar. The encoder is hand-written, since two message types do not
// justify a dependency. https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace train {

class TensorBoard {
 public:
  // Creates the folder and a new file in it; an empty path disables the output. Files of earlier runs stay, and are
  // shown as one curve. Throws std::runtime_error if the file cannot be created.
  explicit TensorBoard(const std::string& folder);
  void add(const std::string& tag, std::int64_t step, double value);
  void flush();  // So that users can follow the run.
  // Throws std::runtime_error if the file is incomplete.
  void close();

 private:
  void write(std::string_view event);

  std::string path_;
  std::ofstream out_;
};

// The CRC-32C (Castagnoli) of RFC 3720, appendix B.4.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace train
