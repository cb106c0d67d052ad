// Flags of every program that trains: the batches, where the run is saved and resumed, and the outputs of its steps.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace CLI {
class App;
}

namespace train {

// Invalid arguments of the user: one line, exit status 2.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct RunFlags {
  std::int64_t steps = 100, batch = 0, seq = 0;
  std::uint64_t seed = 0;
  std::string save, load;       // Folders of checkpoints.
  std::int64_t save_every = 0;  // 0: only at the end.
  std::int64_t keep = 0;        // 0: `save` is the checkpoint; otherwise a folder of the newest `keep` checkpoints.
  std::string resume;           // "latest": the newest of `save`; or a folder; empty: starts at step 0.
  std::string log, plot, tensorboard;  // Files, and a folder of event files.
};

// --save and related flags, --log, --plot, --tensorboard.
void add_run_flags(CLI::App& app, RunFlags& flags);
// Checks a parsed command line. Throws UsageError for a flag with an empty value, as from an unset shell variable, and
// for NaN, which range checks accept.
void check_given(const CLI::App& app);
// Throws UsageError for flags that exclude each other, and for files and folders that cannot be written, before the
// run.
void check_run_flags(const RunFlags& flags);
void check_run_files(const RunFlags& flags);

// Prints `NAME: message` on stderr, only in the first process of a launched program. Returns 2.
int report_usage_error(const std::string& program, const std::string& message);

}  // namespace train
