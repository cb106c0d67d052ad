// Files with access by byte ranges. All errors contain the path and the system's reason.
#pragma once

#include <cstdint>
#include <string>

namespace dtensor::files {

class File {
 public:
  // Creates or replaces a file of `size` bytes. Reserves the disk space if the file system supports it.
  static File create(const std::string& path, std::int64_t size);
  static File open_to_write(const std::string& path);
  static File open_to_read(const std::string& path);  // regular files only: throws for pipes and devices
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  void write(const void* data, std::int64_t bytes, std::int64_t offset) const;
  void read(void* data, std::int64_t bytes, std::int64_t offset) const;  // throws if the file is too short
  std::int64_t size() const;
  void sync() const;

 private:
  File(std::string path, int descriptor);
  std::string path_;
  int descriptor_;
};

std::string read_text(const std::string& path);  // at most 1 GB
void write_text(const std::string& path, const std::string& text, bool sync);

}  // namespace dtensor::files
