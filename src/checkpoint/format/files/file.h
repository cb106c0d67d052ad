// Files by byte ranges. Every error names the path and the system's reason.
#pragma once

#include <cstdint>
#include <string>

namespace dtensor::files {

class File {
 public:
  // `size` bytes, which the disk has room for from then on where its file system can say so; replaces a file of that
  // name.
  static File create(const std::string& path, std::int64_t size);
  static File open_to_write(const std::string& path);
  static File open_to_read(const std::string& path);  // ordinary files only: a pipe or a device is an error at once
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  void write(const void* data, std::int64_t bytes, std::int64_t offset) const;
  void read(void* data, std::int64_t bytes, std::int64_t offset) const;  // error where the file ends before
  std::int64_t size() const;
  void sync() const;

 private:
  File(std::string path, int descriptor);
  std::string path_;
  int descriptor_;
};

std::string read_text(const std::string& path);  // of at most 1 GB
void write_text(const std::string& path, const std::string& text, bool sync);

}  // namespace dtensor::files
