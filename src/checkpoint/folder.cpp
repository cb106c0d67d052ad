// How a checkpoint's folder appears: written under another name, then exchanged with what was there.
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>

#include "checkpoint/file.h"

namespace dtensor::files {
namespace {

namespace fs = std::filesystem;

// rename() of two names at once, where the file system can.
bool exchange(const std::string& a, const std::string& b) {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

void checked_rename(const std::string& from, const std::string& to) {
  TORCH_CHECK(std::rename(from.c_str(), to.c_str()) == 0, "cannot rename ", from, " to ", to, ": ",
              std::strerror(errno));
}

void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // some file systems do not open folders; then they need no sync either
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

bool is_checkpoint_file(const std::string& name) {
  return name == kValuesFile || name == kIndexFile || (name.starts_with("model") && name.ends_with(".safetensors"));
}

void refuse_to_lose(const std::string& directory) {
  if (!fs::exists(directory)) return;
  TORCH_CHECK(fs::is_directory(directory), directory, " is there and is no folder");
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    TORCH_CHECK(is_checkpoint_file(name), directory, " holds '", name,
                "', which is not part of a checkpoint and would be lost; save into another folder or move it away");
  }
}

std::shared_ptr<void> claim(const std::string& directory) {
  static std::mutex mutex;
  static std::set<std::string> claimed;
  const std::string name = fs::weakly_canonical(directory).string();
  const std::lock_guard lock(mutex);
  TORCH_CHECK(claimed.insert(name).second, "another save to ", directory, " is under way; wait() for it first");
  return {&claimed, [name](void*) {
            const std::lock_guard again(mutex);
            claimed.erase(name);
          }};
}

std::string without_slash(std::string directory) {
  while (directory.size() > 1 && directory.ends_with('/')) directory.pop_back();
  TORCH_CHECK(!directory.empty() && directory != "/", "a checkpoint needs the name of a folder");
  return directory;
}

std::string make_temporary(const std::string& directory) {
  const std::string temporary = directory + ".saving";
  refuse_to_lose(directory);
  refuse_to_lose(temporary);  // what an interrupted save left is removed
  fs::remove_all(temporary);
  fs::create_directories(temporary);
  return temporary;
}

void put_in_place(const std::string& temporary, const std::string& directory, bool sync) {
  const std::string parent = fs::absolute(directory).parent_path().string();
  if (sync) sync_folder(temporary);
  if (!fs::exists(directory)) {
    checked_rename(temporary, directory);
  } else if (exchange(temporary, directory)) {
    if (sync) sync_folder(parent);  // before the old one goes
    remove_folder(temporary);
  } else {
    const std::string old = directory + ".old";
    remove_folder(old);
    checked_rename(directory, old);
    checked_rename(temporary, directory);
    remove_folder(old);
  }
  if (sync) sync_folder(parent);
}

void remove_folder(const std::string& folder) noexcept {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

}  // namespace dtensor::files
