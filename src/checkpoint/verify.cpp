// Verifies a checkpoint's checksums in one process.
#include <algorithm>

#include "checkpoint/collective_errors.h"
#include "checkpoint/format/checksum.h"
#include "checkpoint/format/files/file.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/load/read_ranges.h"
#include "checkpoint/local_part.h"

namespace dtensor {
namespace files {
namespace {

std::string problem_of(const CheckpointEntry& entry, std::vector<char>& buffer) {
  const File file = File::open_to_read(entry.file);
  const std::int64_t numel = numel_of(entry.sizes);
  const std::int64_t item = entry.dtype == at::ScalarType::Undefined ? 1 : element_bytes(entry);
  Checksum sum;
  for (std::int64_t at = 0; at < entry.bytes;) {
    const std::int64_t bytes = std::min(entry.bytes - at, kBufferBytes);
    file.read(buffer.data(), bytes, entry.offset + at);
    if (entry.checksum) sum += checksum(buffer.data(), item, bytes / item, at / item);
    at += bytes;
  }
  if (!entry.checksum || sum == Checksum{*entry.checksum, numel}) return "";
  return entry.file + " is damaged: the checksum of '" + entry.name + "' does not match the data";
}

}  // namespace
}  // namespace files

std::vector<std::string> verify_checkpoint(const std::string& path) {
  using namespace files;
  std::vector<std::string> problems;
  CheckpointIndex index;
  const std::string error = error_of([&] { index = read_checkpoint_index(path); });
  if (!error.empty()) return {error};
  std::vector<char> buffer(kBufferBytes);
  for (const CheckpointEntry& entry : index.entries) {
    std::string problem;
    const std::string failed = error_of([&] { problem = problem_of(entry, buffer); });
    if (!failed.empty() || !problem.empty()) problems.push_back(failed.empty() ? problem : failed);
  }
  return problems;
}

}  // namespace dtensor
