// Events as bytes.
#include "train/output/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <filesystem>

#include "train/output/output.h"

namespace train {

std::uint32_t crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> entries{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      entries[i] = i;
      for (int bit = 0; bit < 8; ++bit) entries[i] = (entries[i] >> 1) ^ ((entries[i] & 1) != 0 ? 0x82f63b78u : 0u);
    }
    return entries;
  }();
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) crc = table[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

namespace {

template <class Number>
std::string little_endian(Number value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

// Checksums of data that contains checksums are masked, as TFRecord requires.
std::string masked_crc(std::string_view bytes) {
  const auto crc = crc32c(bytes);
  return little_endian(std::rotr(crc, 15) + 0xa282ead8u);
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

// Fields of protocol buffers: a number and a wire type (0: varint, 1: 8 bytes, 2: a length and bytes, 5: 4 bytes).
std::string field(int number, int type, const std::string& content) {
  const auto head = varint(static_cast<std::uint64_t>(number << 3 | type));
  return head + (type == 2 ? varint(content.size()) : "") + content;
}

std::string wall_time() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return field(1, 1, little_endian(std::bit_cast<std::uint64_t>(now.count())));
}

std::string file_name(const std::string& folder) {
  static std::atomic<int> files{0};
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  return fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder, now.count(), host.data(), getpid(), files++);
}

}  // namespace

TensorBoard::TensorBoard(const std::string& folder) {
  if (folder.empty()) return;
  std::filesystem::create_directories(folder);
  path_ = file_name(folder);
  out_.open(path_, std::ios::binary | std::ios::trunc);
  if (!out_) throw std::runtime_error("--tensorboard: cannot write " + path_);
  write(wall_time() + field(3, 2, "brain.Event:2"));  // The version of the format.
}

void TensorBoard::write(std::string_view event) {
  const auto length = little_endian(static_cast<std::uint64_t>(event.size()));
  out_ << length << masked_crc(length) << event << masked_crc(event);
}

void TensorBoard::add(const std::string& tag, std::int64_t step, double value) {
  if (!out_.is_open()) return;
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  const auto scalar = field(1, 2, tag) + field(2, 5, little_endian(bits));
  write(wall_time() + field(2, 0, varint(static_cast<std::uint64_t>(step))) + field(5, 2, field(1, 2, scalar)));
}

void TensorBoard::flush() {
  if (out_.is_open()) out_.flush();
}

void TensorBoard::close() {
  if (out_.is_open()) close_written(out_, path_);
}

}  // namespace train
