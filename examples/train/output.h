// Files that the programs write: where they cannot be, that is told before the work; what was not written whole, after.
#pragma once

#include <fstream>
#include <string>

#include "run_flags.h"

namespace train {

// Throws UsageError unless a file can be written there. Leaves an existing file as it is.
void check_writable(const std::string& flag, const std::string& path);
// Throws UsageError where a checkpoint could not be saved in that folder. `keep_foreign`: other files in it may stay.
void check_can_save(const std::string& flag, const std::string& path, bool keep_foreign = false);

// Throws std::runtime_error, naming `path`, unless everything that `out` was given has reached the file. Closes it.
void close_written(std::ofstream& out, const std::string& path);
// A file of this content. Throws as close_written does.
void write_file(const std::string& path, const std::string& content);

}  // namespace train
