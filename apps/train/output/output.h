// Output files of the programs: errors are reported before the work if a file cannot be created, and after it if it is
// incomplete.
#pragma once

#include <fstream>
#include <string>

#include "train/run_flags.h"

namespace train {

// Throws UsageError unless a file can be written there. Does not change an existing file.
void check_writable(const std::string& flag, const std::string& path);
// Throws UsageError if a checkpoint cannot be saved in that folder. `keep_foreign`: the folder may have other files.
void check_can_save(const std::string& flag, const std::string& path, bool keep_foreign = false);

// Closes `out`. Throws std::runtime_error with `path` unless all of its content has been written to the file.
void close_written(std::ofstream& out, const std::string& path);
// Writes a file with this content. Throws as close_written does.
void write_file(const std::string& path, const std::string& content);

}  // namespace train
