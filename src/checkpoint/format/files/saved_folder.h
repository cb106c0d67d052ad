// Folders of checkpoints: their files, temporary folders, and atomic replacement.
#pragma once

#include <string>
#include <system_error>
#include <vector>

namespace dtensor::files {

inline constexpr const char* kValuesFile = "checkpoint.json";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
// Whether `name` is a file name of checkpoints: one of the two above, model.safetensors or
// model-00001-of-00002.safetensors.
bool is_checkpoint_file(const std::string& name);

bool is_absent(const std::error_code& error);  // no file or folder with this name

bool only_checkpoint_files(const std::string& folder);

std::string strip_trailing_slash(std::string directory);
// Follows a link to a folder and returns an absolute path, because the current folder may change during a save. Throws
// for a dangling link.
std::string resolve(const std::string& directory);
// Throws if `directory` is not a folder, or contains other files and keep_foreign is false.
void check_may_replace(const std::string& directory, bool keep_foreign);

void make_parent(const std::string& directory);
// Creates an empty temporary folder with a unique name, to be renamed to `directory`.
std::string make_temporary(const std::string& directory);
// Removes what interrupted saves to `directory` left. The caller must hold its lock.
void clean_up(const std::string& directory);
// Folders to which interrupted saves have moved the previous checkpoint.
std::vector<std::string> find_moved_aside(const std::string& directory);

// Renames the temporary folder to `directory`. Removes the previous content, except foreign files.
void move_into_place(const std::string& temporary, const std::string& directory, bool sync);
void remove_folder(const std::string& folder) noexcept;

}  // namespace dtensor::files
