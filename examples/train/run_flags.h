// What every program that trains is told of its run, whatever it trains: which batches, where it is saved and taken up,
// what is written of its steps.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace CLI {
class App;
}

namespace train {

// The user asked for something that cannot be: one line, exit status 2.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct RunFlags {
  std::int64_t steps = 100, batch = 0, seq = 0;
  std::uint64_t seed = 0;
  std::string save, load;              // folders of checkpoints
  std::int64_t save_every = 0;         // 0: only at the end
  std::int64_t keep = 0;               // 0: `save` is the checkpoint; else a folder of the newest so many
  std::string resume;                  // "latest": the newest of `save`; or a folder; empty: from the beginning
  std::string log, plot, tensorboard;  // files, and a folder of event files
};

// --save and what belongs to it, --log, --plot, --tensorboard.
void add_run_flags(CLI::App& app, RunFlags& flags);
// Of a command line that was parsed: throws UsageError for a flag whose text is empty, as of a shell's variable that is
// not set (the flag would be passed over), and for a number that is NaN, which every range lets through.
void check_given(const CLI::App& app);
// Throw UsageError: flags that do not go together; files and folders that could not be written, before the work.
void check_run_flags(const RunFlags& flags);
void check_run_files(const RunFlags& flags);

// Prints `NAME: message` on stderr, from the first process of a launched program only. Returns 2.
int report_usage_error(const std::string& program, const std::string& message);

}  // namespace train
