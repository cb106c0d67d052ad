// Event files for TensorBoard: TFRecord files with checksums that contain protocol buffers. They are decoded here by
// the definitions of the formats.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/folder.h"
#include "train/output/run_output.h"
#include "train/output/tensorboard.h"

namespace {

namespace fs = std::filesystem;

using dtensor::test::Folder;

// Of the only file in the folder.
std::string content_of(const Folder& folder) {
  std::ifstream in(fs::directory_iterator(folder.path())->path(), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Scalar {
  std::string tag;
  std::int64_t step = 0;
  float value = 0;
  bool operator==(const Scalar&) const = default;
};

template <class Number>
Number number_at(std::string_view bytes, std::size_t at) {
  Number value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Parses a protocol buffer field by field.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}
  bool next() {
    if (rest_.empty()) return false;
    const auto key = varint();
    field = static_cast<int>(key >> 3);
    const std::size_t fixed[] = {0, 8, 0, 0, 0, 4};
    if ((key & 7) == 0) return number = static_cast<std::int64_t>(varint()), true;
    const auto length = (key & 7) == 2 ? static_cast<std::size_t>(varint()) : fixed[key & 7];
    content = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

  int field = 0;
  std::int64_t number = 0;
  std::string_view content;

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string_view rest_;
};

std::uint32_t unmasked(std::uint32_t crc) {
  const std::uint32_t turned = crc - 0xa282ead8u;
  return turned >> 17 | turned << 15;
}

std::vector<std::string> records(std::string_view file) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at < file.size();) {
    const auto length = static_cast<std::size_t>(number_at<std::uint64_t>(file, at));
    EXPECT_EQ(unmasked(number_at<std::uint32_t>(file, at + 8)), train::crc32c(file.substr(at, 8)));
    all.emplace_back(file.substr(at + 12, length));
    EXPECT_EQ(unmasked(number_at<std::uint32_t>(file, at + 12 + length)), train::crc32c(all.back()));
    at += length + 16;
  }
  return all;
}

Scalar scalar_of(std::string_view event) {
  Scalar scalar;
  for (Message fields(event); fields.next();) {
    if (fields.field == 2) scalar.step = fields.number;
    if (fields.field != 5) continue;
    Message summary(fields.content);
    EXPECT_TRUE(summary.next() && summary.field == 1);
    for (Message value(summary.content); value.next();) {
      if (value.field == 1) scalar.tag = value.content;
      if (value.field == 2) scalar.value = number_at<float>(value.content, 0);
    }
  }
  return scalar;
}

TEST(TensorBoard, ChecksumsAreCrc32c) {
  EXPECT_EQ(train::crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(train::crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(train::crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(TensorBoard, WritesVersionAndScalars) {
  const Folder folder;
  train::TensorBoard board(folder.str());
  board.add("loss", 1, 2.5);
  board.add("a tag/with parts", 1234567, -0.125);
  board.close();
  const auto all = records(content_of(folder));
  ASSERT_EQ(all.size(), 3U);
  std::string version;
  for (Message fields(all[0]); fields.next();) {
    if (fields.field == 3) version = fields.content;
  }
  EXPECT_EQ(version, "brain.Event:2");
  EXPECT_EQ(scalar_of(all[1]), (Scalar{"loss", 1, 2.5f}));
  EXPECT_EQ(scalar_of(all[2]), (Scalar{"a tag/with parts", 1234567, -0.125f}));
  EXPECT_NE(fs::directory_iterator(folder.str())->path().filename().string().find("tfevents"), std::string::npos);
}

TEST(TensorBoard, RunWritesEachStepAndItsEvaluations) {
  const Folder folder;
  train::RunFlags flags;
  flags.steps = 2, flags.tensorboard = folder.str();
  train::RunOutput others(flags, false), output(flags, true);
  others.add({.step = 0});
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  output.add({.step = 0, .tokens = 8, .loss = 2, .grad_norm = 3, .lr = 0.5, .seconds = 4, .moved = {{"tp", 64}}});
  output.add_evaluation(1, 1.5);
  testing::internal::GetCapturedStderr();
  testing::internal::GetCapturedStdout();
  output.close(), others.close();
  std::vector<Scalar> scalars;
  for (const auto& event : records(content_of(folder))) scalars.push_back(scalar_of(event));
  const std::vector<Scalar> expected = {{"", 0, 0},  // The version.
                                        {"loss", 1, 2},
                                        {"gradient norm", 1, 3},
                                        {"learning rate", 1, 0.5},
                                        {"tokens per second", 1, 2},
                                        {"bytes received/tp", 1, 64},
                                        {"evaluation/loss", 1, 1.5}};
  EXPECT_EQ(scalars, expected);
  EXPECT_EQ(output.losses(), (std::vector<double>{2}));
}

}  // namespace
