// Atomic replacement of a checkpoint folder: files are written to a temporary folder, which is then exchanged with the
// old one.
#include "checkpoint/format/files/saved_folder.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <regex>

#include "checkpoint/format/files/folder_lock.h"

namespace dtensor::files {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemporarySuffix = ".saving";
constexpr const char* kMovedAside = ".before";  // suffix of a temporary folder's name: the previous checkpoint

// Exchanges two names atomically, if the file system supports it.
bool exchange(const std::string& a, const std::string& b) {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

void checked_rename(const std::string& from, const std::string& to) {
  TORCH_CHECK(std::rename(from.c_str(), to.c_str()) == 0, "cannot rename ", from, " to ", to, ": ",
              std::strerror(errno));
}

void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // some file systems cannot open folders; these need no sync
  ::fsync(descriptor);
  ::close(descriptor);
}

// HOST-PID-COUNT, see unique_name().
constexpr const char* kUnique = "-.+-[0-9]+-[0-9]+";

// Folders next to `directory` whose names begin with its name and ".saving", each with the rest of the name.
std::vector<std::pair<fs::path, std::string>> leftovers(const std::string& directory) {
  const fs::path path = fs::absolute(directory);
  const std::string begin = path.filename().string() + kTemporarySuffix;
  std::vector<std::pair<fs::path, std::string>> found;
  std::error_code error, ignored;
  const fs::directory_iterator beside(path.parent_path(), error);
  // Ignores folders that may not be listed, because saving is still possible. Other errors are not treated as an empty
  // folder.
  TORCH_CHECK(!error || is_absent(error) || error == std::errc::permission_denied, "cannot read the folder ",
              path.parent_path().string(), ": ", error.message());
  for (const auto& entry : beside) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin) && entry.is_directory(ignored)) {
      found.emplace_back(entry.path(), name.substr(begin.size()));
    }
  }
  return found;
}

// Whether an interrupted save left the folder: its name has the suffix of unique_name(), or none (older releases).
bool is_abandoned(const fs::path& folder, const std::string& rest) {
  return rest.empty() ? only_checkpoint_files(folder.string()) : std::regex_match(rest, std::regex(kUnique));
}

bool is_moved_aside(const std::string& rest) {
  return std::regex_match(rest, std::regex(kUnique + ("\\" + std::string(kMovedAside))));
}

// Uses hard links if possible, so that large files are not copied.
void move_foreign_files(const std::string& from, const std::string& to) {
  using Options = fs::copy_options;
  for (const auto& entry : fs::directory_iterator(from)) {
    const fs::path target = fs::path(to) / entry.path().filename();
    if (is_checkpoint_file(entry.path().filename().string())) continue;
    std::error_code error;
    fs::copy(entry.path(), target, Options::recursive | Options::copy_symlinks | Options::create_hard_links, error);
    if (!error) continue;
    fs::remove_all(target);
    fs::copy(entry.path(), target, Options::recursive | Options::copy_symlinks);
  }
}

}  // namespace

bool is_absent(const std::error_code& error) {
  return error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
}

bool is_checkpoint_file(const std::string& name) {
  static const std::regex tensors("model(-[0-9]{5,}-of-[0-9]{5,})?\\.safetensors");
  return name == kValuesFile || name == kIndexFile || std::regex_match(name, tensors);
}

bool only_checkpoint_files(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!is_checkpoint_file(entry.path().filename().string())) return false;
  }
  return true;
}

std::string strip_trailing_slash(std::string directory) {
  while (directory.size() > 1 && (directory.ends_with('/') || directory.ends_with("/."))) directory.pop_back();
  TORCH_CHECK(!directory.empty() && directory != "/", "expected the name of a checkpoint folder");
  return directory;
}

std::string resolve(const std::string& directory) {
  std::string folder = fs::absolute(strip_trailing_slash(directory)).string();
  std::error_code error;
  if (!fs::is_symlink(folder, error)) return folder;
  const fs::path there = fs::canonical(folder, error);
  TORCH_CHECK(!error, folder, " is a link to ", fs::read_symlink(folder).string(), ", which does not exist");
  return there.string();
}

void check_may_replace(const std::string& directory, bool keep_foreign) {
  const std::string last = fs::path(directory).filename().string();
  TORCH_CHECK(last != "." && last != "..", "expected the name of a checkpoint folder, got '", directory, "'");
  std::error_code error;
  const auto status = fs::status(directory, error);
  if (status.type() == fs::file_type::not_found) return;
  TORCH_CHECK(!fs::status_known(status) || fs::is_directory(status), directory, " exists and is not a folder");
  const fs::directory_iterator files(directory, error);
  TORCH_CHECK(!error, "cannot read the folder ", directory, ": ", error.message());
  for (const auto& entry : files) {
    const std::string name = entry.path().filename().string();
    TORCH_CHECK(keep_foreign || is_checkpoint_file(name), directory, " contains '", name,
                "', which is not part of a checkpoint and would be lost; save to another folder, move it away, or set "
                "SaveOptions::keep_foreign");
  }
}

void make_parent(const std::string& directory) {
  std::error_code error;
  fs::create_directories(fs::absolute(directory).parent_path(), error);
  TORCH_CHECK(!error, "cannot create the parent folder of ", directory, ": ", error.message());
}

std::string make_temporary(const std::string& directory) {
  const std::string temporary = directory + kTemporarySuffix + "-" + unique_name();
  std::error_code error;
  fs::create_directory(temporary, error);
  TORCH_CHECK(!error, "cannot create the folder ", temporary, ": ", error.message());
  return temporary;
}

void clean_up(const std::string& directory) {
  const std::vector<std::string> aside = find_moved_aside(directory);
  if (!aside.empty() && !fs::exists(directory)) checked_rename(aside.back(), directory);
  for (const std::string& folder : aside) remove_folder(folder);
  for (const auto& [folder, rest] : leftovers(directory)) {
    if (is_abandoned(folder, rest)) remove_folder(folder.string());
  }
}

std::vector<std::string> find_moved_aside(const std::string& directory) {
  std::vector<std::string> folders;
  for (const auto& [folder, rest] : leftovers(directory)) {
    if (is_moved_aside(rest)) folders.push_back(folder.string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

void move_into_place(const std::string& temporary, const std::string& directory, bool sync) {
  const std::string parent = fs::absolute(directory).parent_path().string();
  const bool replaces = fs::exists(directory);
  if (replaces) move_foreign_files(directory, temporary);
  if (sync) sync_folder(temporary);
  if (!replaces) {
    checked_rename(temporary, directory);
  } else if (exchange(temporary, directory)) {
    if (sync) sync_folder(parent);  // before the old folder is removed
    remove_folder(temporary);
  } else {
    const std::string before = temporary + kMovedAside;
    checked_rename(directory, before);
    try {
      checked_rename(temporary, directory);
    } catch (...) {
      std::rename(before.c_str(), directory.c_str());
      throw;
    }
    if (sync) sync_folder(parent);
    remove_folder(before);
  }
  if (sync) sync_folder(parent);
}

void remove_folder(const std::string& folder) noexcept {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

}  // namespace dtensor::files
