// Output files of the programs: errors are reported before the work if a file cannot be created, and after it if it is
// incomplete.
#include "train/output/output.h"

#include "dtensor/checkpoint.h"

namespace train {

void check_writable(const std::string& flag, const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return;
  throw UsageError(flag + ": cannot write " + path);
}

void check_can_save(const std::string& flag, const std::string& path, bool keep_foreign) {
  if (path.empty()) return;
  try {
    dtensor::check_can_save(path, {.keep_foreign = keep_foreign});
  } catch (const c10::Error& error) {
    throw UsageError(flag + ": " + error.what_without_backtrace());
  }
}

void close_written(std::ofstream& out, const std::string& path) {
  out.close();  // A stream that failed before stays failed.
  if (!out) throw std::runtime_error(path + " could not be written completely (disk full?)");
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << content;
  close_written(out, path);
}

}  // namespace train
