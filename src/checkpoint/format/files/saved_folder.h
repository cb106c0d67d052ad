// The folders that checkpoints appear in: which files are a checkpoint's, the temporary folder, and how it takes its
// name.
#pragma once

#include <string>
#include <system_error>
#include <vector>

namespace dtensor::files {

inline constexpr const char* kValuesFile = "checkpoint.json";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
// Whether it is a name that a checkpoint gives its files: the two above, model.safetensors,
// model-00001-of-00002.safetensors.
bool is_checkpoint_file(const std::string& name);

bool is_absent(const std::error_code& error);  // there is nothing, or no folder, of that name

bool only_checkpoint_files(const std::string& folder);

std::string strip_trailing_slash(std::string directory);
// The folder itself where `directory` is a link to one, as an absolute path: a program may change its current folder
// while a save is under way. Throws where it is a link to nothing.
std::string resolve(const std::string& directory);
// Throws where `directory` is no folder, or holds files that are not a checkpoint's, unless these are to stay.
void check_may_replace(const std::string& directory, bool keep_foreign);

void make_parent(const std::string& directory);
// The folder that `directory` is written as until it is complete: of a name that no other save has, made empty.
std::string make_temporary(const std::string& directory);
// Removes what interrupted saves to `directory` left. To be called while its lock is held.
void clean_up(const std::string& directory);
// Folders that the previous checkpoint was moved to by a save that was then interrupted.
std::vector<std::string> find_moved_aside(const std::string& directory);

// Gives the temporary folder its name; what had the name before is removed, but for files that are not a checkpoint's.
void move_into_place(const std::string& temporary, const std::string& directory, bool sync);
void remove_folder(const std::string& folder) noexcept;

}  // namespace dtensor::files
