// Files by byte ranges, and the folders that checkpoints appear in. Every error names the path and the system's reason.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace dtensor::files {

class File {
 public:
  // `size` bytes; replaces a file of that name.
  static File create(const std::string& path, std::int64_t size);
  static File open_to_write(const std::string& path);
  static File open_to_read(const std::string& path);
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

std::string read_text(const std::string& path);
void write_text(const std::string& path, const std::string& text, bool sync);

inline constexpr const char* kValuesFile = "checkpoint.json";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
bool is_checkpoint_file(const std::string& name);  // whether a checkpoint may have a file of that name

std::string without_slash(std::string directory);
// Holds the folder against another save to it from this process; an error where one is under way.
std::shared_ptr<void> claim(const std::string& directory);
// Throws where `directory` could not be replaced without losing files that are not a checkpoint's.
void refuse_to_lose(const std::string& directory);
// The folder that `directory` is written as until it is complete; made empty, parents included.
std::string make_temporary(const std::string& directory);
// Gives the temporary folder its name; what had the name before is removed.
void put_in_place(const std::string& temporary, const std::string& directory, bool sync);
void remove_folder(const std::string& folder) noexcept;

}  // namespace dtensor::files
